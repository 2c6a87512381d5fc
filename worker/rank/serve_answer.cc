#include "worker/rank/serve_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/json.h"
#include "worker/engine/base/error.h"

namespace sft::rank {
namespace {

using Json = nlohmann::ordered_json;

// A line is at most 1 MiB.
constexpr size_t kTextBytes = 64 << 10, kTokensOfLine = 128, kIdsOfLine = 16384;
// Tokens before one whose text is looked for: more than a character has.
constexpr size_t kContext = 8;
// A character of which a token has only a part is shown as U+FFFD until the rest comes.
constexpr std::string_view kReplacement = "\xef\xbf\xbd";

size_t WithoutReplacements(std::string_view text) {
  size_t size = text.size();
  while (text.substr(0, size).ends_with(kReplacement)) size -= kReplacement.size();
  return size;
}

// How many bytes of the text are whole characters and no beginning of a stop text.
size_t SettledBytes(const std::string& text, const std::vector<std::string>& stops) {
  size_t settled = text.size();
  for (const std::string& stop : stops) {
    for (size_t length = std::min(stop.size() - 1, text.size()); length > 0; --length) {
      if (!text.ends_with(std::string_view(stop).substr(0, length))) continue;
      settled = std::min(settled, text.size() - length);
      break;
    }
  }
  return WithoutReplacements(std::string_view(text).substr(0, settled));
}

// The first piece of `text` that a line has room for, in whole characters.
std::string_view FirstPiece(std::string_view text) {
  if (text.size() <= kTextBytes) return text;
  size_t size = kTextBytes;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return text.substr(0, size == 0 ? kTextBytes : size);
}

std::string End() { return "{\"end\":true}\n"; }

}  // namespace

ServeAnswer::ServeAnswer(const ServeQuestion& question, const engine::ChatTokenizer& tokenizer,
                         size_t prompt, int sample, std::vector<int32_t> tokens)
    : question_(question),
      tokenizer_(tokenizer),
      prompt_number_(prompt),
      sample_(sample),
      prompt_(std::move(tokens)) {}

engine::GenerationRequest ServeAnswer::Request(int64_t most_new_tokens) {
  engine::GenerationRequest request;
  request.prompt = prompt_;
  // Who asks for more than can be answered gets what can: "length" says so.
  request.max_new_tokens = std::min(question_.max_new_tokens, most_new_tokens);
  request.prompt_scores =
      question_.echo && (question_.logprobs.has_value() || request.max_new_tokens == 0);
  request.sampling = question_.sampling;
  request.sampling.seed += static_cast<uint64_t>(sample_);
  request.adapter = !question_.base;
  request.stop_ids = tokenizer_.stop_ids();
  request.stop_strings = question_.stop;
  request.decode = [this](std::span<const int32_t> ids) { return tokenizer_.DecodeAnswer(ids); };
  request.on_token = [this](int32_t token) {
    tokens_.push_back(token);
    return true;
  };
  if (question_.logprobs.has_value()) {
    request.alternatives = *question_.logprobs;
    request.on_choice = [this](const engine::ChosenToken& chosen) { scored_.push_back({chosen}); };
  }
  return request;
}

std::string ServeAnswer::TextOf(std::span<const int32_t> before, int32_t token) const {
  const engine::Tokenizer& tokenizer = tokenizer_.tokenizer();
  const auto last = before.last(std::min(before.size(), kContext));
  std::vector<int32_t> ids(last.begin(), last.end());
  std::string shorter = ids.empty() ? "" : tokenizer.Decode(ids, /*skip_special=*/false);
  ids.push_back(token);
  std::string longer = tokenizer.Decode(ids, false);
  shorter.resize(WithoutReplacements(shorter));
  longer.resize(WithoutReplacements(longer));
  if (longer.starts_with(shorter)) return longer.substr(shorter.size());
  return tokenizer.Decode(std::span(&token, 1), false);
}

Json ServeAnswer::TokensJson(size_t first, size_t last) const {
  std::vector<int32_t> before;
  if (!question_.echo)
    before.assign(prompt_.end() - static_cast<std::ptrdiff_t>(std::min(prompt_.size(), kContext)),
                  prompt_.end());
  for (size_t i = first - std::min(first, kContext); i < first; ++i) {
    before.push_back(scored_[i].chosen.token.token);
  }
  Json list = Json::array();
  for (size_t i = first; i < last; ++i) {
    const engine::ChosenToken& chosen = scored_[i].chosen;
    const int32_t id = chosen.token.token;
    Json token = {{"id", id}, {"text", TextOf(before, id)}};
    if (scored_[i].known) token["logprob"] = chosen.token.log_probability;
    if (i >= echoed_ &&
        std::ranges::find(tokenizer_.stop_ids(), id) != tokenizer_.stop_ids().end()) {
      token["ends"] = true;
    }
    for (const engine::TokenLikelihood& each : chosen.likeliest) {
      // A part of a character is shown as such: nothing comes that would complete it.
      std::string text = TextOf(before, each.token);
      if (text.empty()) text = tokenizer_.tokenizer().Decode(std::span(&each.token, 1), false);
      token["top"].push_back(
          {{"id", each.token}, {"text", std::move(text)}, {"logprob", each.log_probability}});
    }
    before.push_back(id);
    list.push_back(std::move(token));
  }
  return list;
}

std::string ServeAnswer::Line(Json members) const {
  if (question_.listed) {
    members["index"] =
        prompt_number_ * static_cast<size_t>(question_.samples) + static_cast<size_t>(sample_);
  }
  return DumpJson(members) + "\n";
}

std::string ServeAnswer::Lines(std::string_view text) {
  std::string lines;
  while (!text.empty() || told_scores_ < scored_.size()) {
    const std::string_view piece = FirstPiece(text);
    text.remove_prefix(piece.size());
    Json members = {{"text", piece}};
    const size_t last = std::min(scored_.size(), told_scores_ + kTokensOfLine);
    if (last > told_scores_) members["tokens"] = TokensJson(told_scores_, last);
    told_scores_ = last;
    lines += Line(std::move(members));
  }
  return lines;
}

std::string ServeAnswer::Tell() {
  // The prompt comes first, and how likely it was is known at the end.
  if (question_.echo || tokens_.empty()) return "";
  const std::string text = tokenizer_.DecodeAnswer(tokens_);
  const size_t settled = SettledBytes(text, question_.stop);
  const std::string_view fresh =
      settled > told_bytes_ ? std::string_view(text).substr(told_bytes_, settled - told_bytes_)
                            : std::string_view();
  std::string lines = Lines(fresh);
  told_bytes_ = std::max(told_bytes_, settled);
  return lines;
}

// The prompt's tokens before those of the answer.
void ServeAnswer::AddEcho(const engine::GenerationAnswer& made) {
  if (!question_.logprobs.has_value()) return;
  std::vector<Scored> all;
  for (size_t i = 0; i < prompt_.size(); ++i) {
    if (i == 0 || i > made.prompt_scores.size()) {
      all.push_back({{{prompt_[i], 0}, {}}, /*known=*/false});
      continue;
    }
    const engine::TokenScore& score = made.prompt_scores[i - 1];
    all.push_back({{{prompt_[i], score.log_probability}, {}}});
    if (*question_.logprobs > 0) {
      all.back().chosen.likeliest = {{score.likeliest, score.likeliest_log_probability}};
    }
  }
  echoed_ = all.size();
  all.insert(all.end(), scored_.begin(), scored_.end());
  scored_ = std::move(all);
}

std::string ServeAnswer::Finish(const engine::GenerationAnswer& made) {
  std::string text = tokenizer_.DecodeAnswer(made.tokens);
  if (made.reason == engine::EndReason::kStopString) text.resize(made.text_bytes);
  text.erase(0, std::min(told_bytes_, text.size()));
  if (question_.echo) {
    AddEcho(made);
    const ServeQuestion::Prompt& prompt = question_.prompts[prompt_number_];
    text.insert(0, prompt.is_row ? prompt.row.text
                                 : tokenizer_.tokenizer().Decode(prompt_, /*skip_special=*/false));
  }
  std::string lines = Lines(text);
  Json end = {{"finish_reason", FinishReason(made)},
              {"prompt_tokens", prompt_.size()},
              {"answer_tokens", made.tokens.size()}};
  if (!made.problem.empty()) end["error"] = made.problem;
  return lines + Line(std::move(end));
}

std::string RefusalLine(const std::string& error) {
  return DumpJson(Json{{"finish_reason", "error"}, {"error", error}, {"refused", true}}) + "\n";
}

std::string TokenizerLines(const ServeQuestion& question, const engine::ChatTokenizer& tokenizer,
                           int64_t max_tokens) {
  std::string lines;
  if (question.kind == ServeQuestion::Kind::kTokenize) {
    const std::vector<int32_t> tokens =
        ControlledTokens(question.text, question.with_special_tokens, tokenizer);
    for (size_t first = 0; first < tokens.size(); first += kIdsOfLine) {
      const size_t count = std::min(kIdsOfLine, tokens.size() - first);
      lines += DumpJson(Json{{"tokens", std::span(tokens).subspan(first, count)}}) + "\n";
    }
    lines += DumpJson(Json{{"max_tokens", max_tokens}}) + "\n";
  } else if (question.kind == ServeQuestion::Kind::kDetokenize) {
    for (const int32_t id : question.tokens) {
      if (id < tokenizer.tokenizer().vocabulary_size()) continue;
      throw engine::UserError(fmt::format("the tokens hold {}, but the tokenizer has {} tokens", id,
                                          tokenizer.tokenizer().vocabulary_size()));
    }
    const std::string text = tokenizer.tokenizer().Decode(question.tokens, false);
    std::string_view left = text;
    while (!left.empty()) {
      const std::string_view piece = FirstPiece(left);
      lines += DumpJson(Json{{"text", piece}}) + "\n";
      left.remove_prefix(piece.size());
    }
  } else {
    const auto text_of = [&](const std::optional<int32_t>& id) {
      return id.has_value() ? tokenizer.tokenizer().Decode(std::span(&*id, 1), false) : "";
    };
    const engine::ChatTemplate* chat = tokenizer.chat_template();
    lines = DumpJson(Json{{"bos_token", text_of(tokenizer.bos_id())},
                          {"eos_token", text_of(tokenizer.eos_id())},
                          {"chat_template", chat == nullptr ? "" : chat->source()},
                          {"max_tokens", max_tokens}}) +
            "\n";
  }
  return lines + End();
}

}  // namespace sft::rank
