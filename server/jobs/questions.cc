#include "server/jobs/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/utf8.h"

namespace sft::server {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Line = nlohmann::json;

constexpr size_t kMostQuestionBytes = 4 << 20;
constexpr int kMostTop = 32;

absl::StatusOr<std::string> TextOf(const OrderedJson& question) {
  std::string text = DumpJson(question);
  if (text.size() <= kMostQuestionBytes) return text;
  return InvalidArgument(
      fmt::format("a question of {} bytes; at most {} are taken", text.size(), kMostQuestionBytes));
}

template <typename Messages>
OrderedJson MessagesJson(const Messages& messages) {
  OrderedJson list = OrderedJson::array();
  for (const v1::ChatMessage& message : messages) {
    list.push_back({{"role", message.role()}, {"content", message.content()}});
  }
  return list;
}

absl::StatusOr<OrderedJson> PromptJson(const v1::Prompt& prompt, int number) {
  const int forms = !prompt.messages().empty() + !prompt.tokens().empty() + !prompt.text().empty();
  if (forms > 1) {
    return InvalidArgument(
        fmt::format("prompts[{}] has more than one of messages, text and tokens", number));
  }
  OrderedJson json = OrderedJson::object();
  if (!prompt.messages().empty()) {
    if (prompt.messages().rbegin()->role() == "assistant") {
      return InvalidArgument(fmt::format(
          "prompts[{}]: the last message is an answer already, and answers are not gone on with",
          number));
    }
    json["messages"] = MessagesJson(prompt.messages());
  } else if (!prompt.tokens().empty()) {
    json["tokens"] = std::vector<int32_t>(prompt.tokens().begin(), prompt.tokens().end());
  } else {
    json["prompt"] = prompt.text();
  }
  return json;
}

std::string Text(const Line& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? ToUtf8(found->get<std::string>()) : "";
}

int64_t Number(const Line& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

bool Flag(const Line& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && *found == true;
}

absl::StatusOr<Line> ParseLine(const std::string& line) {
  Line json = ParseJson(line);
  if (!json.is_object()) return Unavailable("the job's process answers with what is no answer");
  if (Flag(json, "refused")) return InvalidArgument(Text(json, "error"));
  return json;
}

// An id, or -1.
int32_t IdOf(const Line& json) {
  const int64_t id = json.is_number_integer() ? json.get<int64_t>() : -1;
  return id >= 0 && id <= std::numeric_limits<int32_t>::max() ? static_cast<int32_t>(id) : -1;
}

void TakeToken(const Line& json, v1::TokenScore& token, int depth) {
  if (!json.is_object()) return;
  token.set_id(json.contains("id") ? IdOf(json["id"]) : -1);
  token.set_text(Text(json, "text"));
  token.set_ends(Flag(json, "ends"));
  const auto logprob = json.find("logprob");
  if (logprob != json.end() && logprob->is_number()) token.set_logprob(logprob->get<double>());
  const auto top = json.find("top");
  if (depth == 0 || top == json.end() || !top->is_array()) return;
  for (const Line& each : *top) {
    if (token.top_size() == kMostTop) return;
    TakeToken(each, *token.add_top(), depth - 1);
  }
}

}  // namespace

absl::StatusOr<std::string> QuestionOf(const v1::GenerateRequest& request) {
  if (request.messages().empty() == request.prompt().empty()) {
    return InvalidArgument("a question is either messages or a prompt");
  }
  OrderedJson question = OrderedJson::object();
  if (request.messages().empty()) {
    question["prompt"] = request.prompt();
  } else {
    question["messages"] = MessagesJson(request.messages());
  }
  question["base"] = request.base();
  if (request.has_max_new_tokens()) question["max_new_tokens"] = request.max_new_tokens();
  if (request.has_temperature()) question["temperature"] = request.temperature();
  if (request.has_top_p()) question["top_p"] = request.top_p();
  if (request.has_seed()) question["seed"] = request.seed();
  return TextOf(question);
}

absl::StatusOr<std::string> QuestionOf(const v1::CompleteRequest& request) {
  OrderedJson question = {{"prompts", OrderedJson::array()}};
  for (int i = 0; i < request.prompts_size(); ++i) {
    SFT_ASSIGN_OR_RETURN(OrderedJson prompt, PromptJson(request.prompts(i), i));
    question["prompts"].push_back(std::move(prompt));
  }
  if (request.prompts().empty()) return InvalidArgument("there is no prompt");
  if (request.samples() < 0) return InvalidArgument("samples is less than 1");
  if (request.samples() > 1) question["samples"] = request.samples();
  question["base"] = request.base();
  if (request.has_max_new_tokens()) question["max_new_tokens"] = request.max_new_tokens();
  if (request.has_temperature()) question["temperature"] = request.temperature();
  if (request.has_top_p()) question["top_p"] = request.top_p();
  if (request.has_seed()) question["seed"] = request.seed();
  if (request.has_top_k()) question["top_k"] = request.top_k();
  if (request.has_min_p()) question["min_p"] = request.min_p();
  if (request.has_repetition_penalty()) {
    question["repetition_penalty"] = request.repetition_penalty();
  }
  if (request.has_frequency_penalty()) question["frequency_penalty"] = request.frequency_penalty();
  if (request.has_presence_penalty()) question["presence_penalty"] = request.presence_penalty();
  for (const std::string& stop : request.stop()) question["stop"].push_back(stop);
  if (request.has_logprobs()) question["logprobs"] = request.logprobs();
  if (request.echo()) question["echo"] = true;
  return TextOf(question);
}

absl::StatusOr<std::string> QuestionOf(const v1::TokenizeRequest& request) {
  return TextOf(
      {{"tokenize", request.text()}, {"add_special_tokens", request.add_special_tokens()}});
}

absl::StatusOr<std::string> QuestionOf(const v1::DetokenizeRequest& request) {
  return TextOf(
      {{"detokenize", std::vector<int32_t>(request.tokens().begin(), request.tokens().end())}});
}

std::string QuestionAboutTokenizer() { return "{\"tokenizer\":true}"; }

int64_t AnswersOf(const v1::CompleteRequest& request) {
  return int64_t{request.prompts_size()} * std::max(request.samples(), 1);
}

absl::Status TakeLine(const std::string& line, v1::GenerateResponse& piece) {
  const Line json = ParseJson(line);
  if (!json.is_object()) return Unavailable("the job's process answers with what is no answer");
  piece.set_text(Text(json, "text"));
  piece.set_finish_reason(Text(json, "finish_reason"));
  piece.set_error(Text(json, "error"));
  piece.set_prompt_tokens(Number(json, "prompt_tokens"));
  piece.set_answer_tokens(Number(json, "answer_tokens"));
  return absl::OkStatus();
}

absl::Status TakeLine(const std::string& line, v1::CompleteResponse& piece) {
  SFT_ASSIGN_OR_RETURN(const Line json, ParseLine(line));
  const int64_t index = Number(json, "index");
  if (index < 0 || index > std::numeric_limits<int32_t>::max()) {
    return Unavailable("the job's process answers what was not asked");
  }
  piece.set_index(static_cast<int32_t>(index));
  piece.set_text(Text(json, "text"));
  piece.set_finish_reason(Text(json, "finish_reason"));
  piece.set_error(Text(json, "error"));
  piece.set_prompt_tokens(Number(json, "prompt_tokens"));
  piece.set_answer_tokens(Number(json, "answer_tokens"));
  const auto tokens = json.find("tokens");
  if (tokens == json.end() || !tokens->is_array()) return absl::OkStatus();
  for (const Line& each : *tokens) TakeToken(each, *piece.add_tokens(), /*depth=*/1);
  return absl::OkStatus();
}

absl::StatusOr<bool> TakeLine(const std::string& line, v1::TokenizeResponse& answer) {
  SFT_ASSIGN_OR_RETURN(const Line json, ParseLine(line));
  if (const auto tokens = json.find("tokens"); tokens != json.end() && tokens->is_array()) {
    for (const Line& each : *tokens) answer.add_tokens(IdOf(each));
  }
  if (json.contains("max_tokens")) answer.set_max_tokens(Number(json, "max_tokens"));
  return Flag(json, "end");
}

absl::StatusOr<bool> TakeLine(const std::string& line, v1::DetokenizeResponse& answer) {
  SFT_ASSIGN_OR_RETURN(const Line json, ParseLine(line));
  *answer.mutable_text() += Text(json, "text");
  return Flag(json, "end");
}

absl::StatusOr<bool> TakeLine(const std::string& line, v1::ServedTokenizer& answer) {
  SFT_ASSIGN_OR_RETURN(const Line json, ParseLine(line));
  if (!json.contains("max_tokens")) return Flag(json, "end");
  answer.set_bos_token(Text(json, "bos_token"));
  answer.set_eos_token(Text(json, "eos_token"));
  answer.set_chat_template(Text(json, "chat_template"));
  answer.set_max_tokens(Number(json, "max_tokens"));
  return Flag(json, "end");
}

}  // namespace sft::server
