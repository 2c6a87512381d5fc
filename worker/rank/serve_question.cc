#include "worker/rank/serve_question.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "worker/engine/base/error.h"
#include "worker/rank/prompt_rows.h"

namespace sft::rank {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostLogprobs = 20, kMostAnswers = 128;

[[noreturn]] void Refuse(const std::string& why) { throw engine::UserError(why); }

template <typename T>
void Take(const Json& question, const char* key, T& value) {
  const auto found = question.find(key);
  if (found == question.end()) return;
  if (!found->is_number()) Refuse(fmt::format("{} is no number", key));
  value = found->get<T>();
}

bool TakeFlag(const Json& question, const char* key) {
  const auto found = question.find(key);
  return found != question.end() && *found == true;
}

std::string TextOf(const Json& value, const char* what) {
  if (!value.is_string()) Refuse(fmt::format("{} is no text", what));
  return value.get<std::string>();
}

std::vector<int32_t> IdsOf(const Json& list, const char* what) {
  if (!list.is_array()) Refuse(fmt::format("{} are no list", what));
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& each : list) {
    const int64_t id = each.is_number_integer() ? each.get<int64_t>() : -1;
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      Refuse(fmt::format("{} hold {}, which is no token", what, DumpJson(each).substr(0, 40)));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

data::PromptRow RowOf(const Json& members) {
  absl::StatusOr<data::PromptRow> row = data::ReadPromptRow(DumpJson(members));
  if (!row.ok()) Refuse(std::string(Message(row.status())));
  return *std::move(row);
}

ServeQuestion::Prompt PromptOf(const Json& value) {
  if (!value.is_object()) Refuse("a prompt is no JSON object");
  ServeQuestion::Prompt prompt;
  if (const auto tokens = value.find("tokens"); tokens != value.end()) {
    prompt.is_row = false;
    prompt.tokens = IdsOf(*tokens, "the prompt's tokens");
  } else if (const auto text = value.find("prompt"); text != value.end()) {
    prompt.controls = true;
    prompt.row.text = TextOf(*text, "the prompt");
  } else {
    prompt.row = RowOf(value);
  }
  return prompt;
}

void TakeSampling(const Json& question, engine::SamplingOptions& sampling) {
  for (const char* key : {"num_beams", "length_penalty", "early_stopping"}) {
    if (!question.contains(key)) continue;
    Refuse(
        fmt::format("{}: a job that serves gives its answers token by token, a search with beams "
                    "at its end; ask beams of a job of kind = \"generate\"",
                    key));
  }
  Take(question, "temperature", sampling.temperature);
  Take(question, "top_p", sampling.top_p);
  Take(question, "top_k", sampling.top_k);
  Take(question, "min_p", sampling.min_p);
  Take(question, "seed", sampling.seed);
  Take(question, "repetition_penalty", sampling.repetition_penalty);
  Take(question, "frequency_penalty", sampling.frequency_penalty);
  Take(question, "presence_penalty", sampling.presence_penalty);
}

// What only a question with "prompts" may have.
void TakeListed(const Json& question, ServeQuestion& asked) {
  asked.listed = true;
  for (const Json& each : question["prompts"]) asked.prompts.push_back(PromptOf(each));
  Take(question, "samples", asked.samples);
  const auto count = static_cast<int64_t>(asked.prompts.size());
  if (count == 0) Refuse("there is no prompt");
  if (asked.samples < 1) Refuse("samples is less than 1");
  if (count > kMostAnswers || asked.samples > kMostAnswers / count) {
    Refuse(fmt::format("{} prompts with {} answers to each: at most {} answers are made at once",
                       count, asked.samples, kMostAnswers));
  }
  if (question.contains("logprobs")) {
    asked.logprobs = -1;
    Take(question, "logprobs", *asked.logprobs);
    if (*asked.logprobs < 0 || *asked.logprobs > kMostLogprobs) {
      Refuse(
          fmt::format("logprobs is {}, must be between 0 and {}", *asked.logprobs, kMostLogprobs));
    }
  }
  asked.echo = TakeFlag(question, "echo");
  if (asked.echo && asked.logprobs.value_or(0) > 1) {
    Refuse("with echo, logprobs is 0 or 1: of a prompt's tokens the likeliest one is known");
  }
  if (const auto stop = question.find("stop"); stop != question.end() && stop->is_array()) {
    asked.stop.clear();
    for (const Json& each : *stop) asked.stop.push_back(TextOf(each, "stop"));
  }
}

// One prompt; its row's own members are no options.
void TakeSingle(Json question, ServeQuestion& asked) {
  for (const char* key : {"max_new_tokens", "temperature", "top_p", "seed", "base"}) {
    question.erase(key);
  }
  asked.prompts.emplace_back().row = RowOf(question);
}

}  // namespace

ServeQuestion ReadQuestion(const std::string& line, const AnswerOptions& defaults) {
  const Json question = ParseOrderedJson(line);
  if (!question.is_object()) Refuse("the question is no JSON object");
  ServeQuestion asked;
  asked.max_new_tokens = defaults.max_new_tokens;
  asked.sampling = defaults.sampling;
  asked.stop = defaults.stop;
  if (const auto text = question.find("tokenize"); text != question.end()) {
    asked.kind = ServeQuestion::Kind::kTokenize;
    asked.text = TextOf(*text, "tokenize");
    asked.with_special_tokens = TakeFlag(question, "add_special_tokens");
    return asked;
  }
  if (const auto tokens = question.find("detokenize"); tokens != question.end()) {
    asked.kind = ServeQuestion::Kind::kDetokenize;
    asked.tokens = IdsOf(*tokens, "the tokens");
    return asked;
  }
  if (question.contains("tokenizer")) {
    asked.kind = ServeQuestion::Kind::kTokenizer;
    return asked;
  }
  Take(question, "max_new_tokens", asked.max_new_tokens);
  asked.base = TakeFlag(question, "base");
  if (const auto prompts = question.find("prompts"); prompts != question.end()) {
    if (!prompts->is_array()) Refuse("prompts are no list");
    TakeSampling(question, asked.sampling);
    TakeListed(question, asked);
  } else {
    Take(question, "temperature", asked.sampling.temperature);
    Take(question, "top_p", asked.sampling.top_p);
    Take(question, "seed", asked.sampling.seed);
    TakeSingle(question, asked);
  }
  return asked;
}

std::vector<int32_t> ControlledTokens(const std::string& text, bool begins,
                                      const engine::ChatTokenizer& tokenizer) {
  std::vector<int32_t> tokens = tokenizer.tokenizer().Encode(text).ids;
  const bool adds = begins && tokenizer.adds_bos();
  if (adds && (tokens.empty() || tokens[0] != *tokenizer.bos_id())) {
    tokens.insert(tokens.begin(), *tokenizer.bos_id());
  }
  return tokens;
}

std::vector<int32_t> TokensOf(const ServeQuestion::Prompt& prompt,
                              const engine::ChatTokenizer& tokenizer) {
  if (!prompt.is_row) return prompt.tokens;
  if (prompt.controls) return ControlledTokens(prompt.row.text, /*begins=*/true, tokenizer);
  return EncodeRow(tokenizer, prompt.row);
}

}  // namespace sft::rank
