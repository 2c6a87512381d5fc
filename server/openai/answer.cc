#include "server/openai/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/json.h"

namespace sft::server::openai {
namespace {

using AnyJson = nlohmann::ordered_json;

AnyJson OrNull(const std::string& text) { return text.empty() ? AnyJson() : AnyJson(text); }

int64_t Characters(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

AnyJson Logprob(const v1::TokenScore& token) {
  return token.has_logprob() ? AnyJson(token.logprob()) : AnyJson();
}

// As the chat's log-probabilities have a token.
AnyJson TokenJson(const v1::TokenScore& token) {
  AnyJson bytes = AnyJson::array();
  for (const char c : token.text()) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token.text()}, {"logprob", Logprob(token)}, {"bytes", std::move(bytes)}};
}

// The likeliest, and the token itself. Two tokens may look the same: the later ones are named by
// their ids.
AnyJson TopOf(const v1::TokenScore& token) {
  if (!token.has_logprob()) return nullptr;
  AnyJson top = AnyJson::object();
  bool has_itself = false;
  const auto add = [&](const v1::TokenScore& each) {
    const bool named = top.contains(each.text());
    top[named ? "token_id:" + std::to_string(each.id()) : each.text()] = Logprob(each);
  };
  for (const v1::TokenScore& each : token.top()) {
    const bool is_itself = each.id() == token.id();
    add(is_itself ? token : each);  // one number, for who compares them
    has_itself |= is_itself;
  }
  if (!has_itself) add(token);
  return top;
}

}  // namespace

Answer::Answer(const Asked& asked, std::string id, std::string model, int64_t created_s)
    : asked_(asked), id_(std::move(id)), model_(std::move(model)), created_s_(created_s) {
  choices_.resize(static_cast<size_t>(asked.request.prompts_size()) *
                  static_cast<size_t>(std::max(asked.request.samples(), 1)));
}

Answer::Json Answer::Head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_s_}, {"model", model_}};
}

Answer::Json Answer::Usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", answer_tokens_},
          {"total_tokens", prompt_tokens_ + answer_tokens_}};
}

Answer::Json Answer::ChatTokens(const v1::CompleteResponse& piece) const {
  Json content = Json::array();
  for (const v1::TokenScore& token : piece.tokens()) {
    if (token.ends()) continue;
    Json added = TokenJson(token);
    added["top_logprobs"] = Json::array();
    for (const v1::TokenScore& each : token.top()) added["top_logprobs"].push_back(TokenJson(each));
    content.push_back(std::move(added));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// A token that ended the answer is not in its text, nor is one that was put before an echoed text.
bool Answer::IsInText(const v1::CompleteResponse& piece, const v1::TokenScore& token,
                      Choice& choice) const {
  if (token.ends()) return false;
  if (!asked_.request.echo() || std::exchange(choice.has_tokens, true)) return true;
  const v1::Prompt& prompt =
      asked_.request.prompts(piece.index() / std::max(asked_.request.samples(), 1));
  return !prompt.tokens().empty() || prompt.text().starts_with(token.text());
}

Answer::Json Answer::TextTokens(const v1::CompleteResponse& piece, Choice& choice) const {
  const bool with_top = asked_.request.logprobs() > 0;
  Json tokens = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", with_top ? Json(Json::array()) : Json()},
                 {"text_offset", Json::array()}};
  for (const v1::TokenScore& token : piece.tokens()) {
    tokens["tokens"].push_back(token.text());
    tokens["token_logprobs"].push_back(Logprob(token));
    if (with_top) tokens["top_logprobs"].push_back(TopOf(token));
    tokens["text_offset"].push_back(choice.characters);
    if (IsInText(piece, token, choice)) choice.characters += Characters(token.text());
  }
  return tokens;
}

Answer::Json Answer::Tokens(const v1::CompleteResponse& piece, Choice& choice) const {
  if (!asked_.request.has_logprobs()) return nullptr;
  return asked_.chat ? ChatTokens(piece) : TextTokens(piece, choice);
}

// As text: a tree of them takes several times as much.
absl::Status Answer::Keep(const v1::CompleteResponse& piece, const Json& tokens, Choice& choice) {
  choice.text += piece.text();
  bytes_ += piece.text().size();
  for (const auto& item : tokens.items()) {
    if (!item.value().is_array()) continue;
    std::string& list = choice.tokens[item.key()];
    for (const Json& each : item.value()) {
      const std::string text = DumpJson(each);
      bytes_ += text.size() + 1;
      list += (list.empty() ? "" : ",") + text;
    }
  }
  if (bytes_ <= kMostBytes) return absl::OkStatus();
  return InvalidArgument(fmt::format(
      "the answer has more than {} MiB: let it stream, or ask for fewer tokens, answers or "
      "log-probabilities",
      kMostBytes >> 20));
}

std::string Answer::Event(int32_t index, Choice& choice, const std::string& text,
                          const Json& tokens, const std::string& finish_reason) const {
  Json told = {{"index", index}};
  if (asked_.chat) {
    Json delta = Json::object();
    if (!std::exchange(choice.begun, true)) delta["role"] = "assistant";
    if (!text.empty() || delta.contains("role")) delta["content"] = text;
    told["delta"] = std::move(delta);
  } else {
    told["text"] = text;
  }
  told["logprobs"] = tokens;
  told["finish_reason"] = OrNull(finish_reason);
  Json event = Head(asked_.chat ? "chat.completion.chunk" : "text_completion");
  event["choices"] = Json::array({std::move(told)});
  if (asked_.include_usage) event["usage"] = nullptr;
  return DumpJson(event);
}

absl::StatusOr<std::vector<std::string>> Answer::Take(const v1::CompleteResponse& piece) {
  if (piece.index() < 0 || static_cast<size_t>(piece.index()) >= choices_.size()) {
    return Internal("the job's process answers what was not asked");
  }
  if (piece.finish_reason() == "error") return Internal(piece.error());
  Choice& choice = choices_[static_cast<size_t>(piece.index())];
  const Json tokens = Tokens(piece, choice);
  if (!piece.finish_reason().empty()) {
    choice.finish_reason = piece.finish_reason();
    if (piece.index() % std::max(asked_.request.samples(), 1) == 0) {
      prompt_tokens_ += piece.prompt_tokens();
    }
    answer_tokens_ += piece.answer_tokens();
  }
  std::vector<std::string> events;
  if (!asked_.stream) {
    SFT_RETURN_IF_ERROR(Keep(piece, tokens, choice));
  } else if (!piece.text().empty() || !piece.tokens().empty() || !piece.finish_reason().empty()) {
    events.push_back(Event(piece.index(), choice, piece.text(),
                           piece.tokens().empty() ? Json() : tokens, piece.finish_reason()));
  }
  return events;
}

std::vector<std::string> Answer::LastEvents() const {
  std::vector<std::string> events;
  if (asked_.include_usage) {
    Json last = Head(asked_.chat ? "chat.completion.chunk" : "text_completion");
    last["choices"] = Json::array();
    last["usage"] = Usage();
    events.push_back(DumpJson(last));
  }
  events.push_back("[DONE]");
  return events;
}

std::string Answer::TokensText(const Choice& choice) const {
  if (!asked_.request.has_logprobs()) return "null";
  std::string text = "{";
  const bool with_top = asked_.request.logprobs() > 0;
  for (const char* key : {"content", "tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    if (asked_.chat != (std::string_view(key) == "content")) continue;
    const auto found = choice.tokens.find(key);
    const bool none = std::string_view(key) == "top_logprobs" && !with_top;
    text += fmt::format("{}\"{}\":", text.size() > 1 ? "," : "", key);
    text += none ? "null" : "[" + (found == choice.tokens.end() ? "" : found->second) + "]";
  }
  return text + "}";
}

std::string Answer::ChoiceText(int32_t index, const Choice& choice) const {
  Json json = {{"index", index}};
  if (asked_.chat) {
    json["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  } else {
    json["text"] = choice.text;
  }
  json["finish_reason"] = OrNull(choice.finish_reason);
  std::string text = DumpJson(json);
  text.pop_back();
  return text + ",\"logprobs\":" + TokensText(choice) + "}";
}

std::string Answer::Whole() const {
  Json head = Head(asked_.chat ? "chat.completion" : "text_completion");
  head["usage"] = Usage();
  std::string whole = DumpJson(head);
  whole.pop_back();
  whole += ",\"choices\":[";
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) whole += ",";
    whole += ChoiceText(static_cast<int32_t>(i), choices_[i]);
  }
  return whole + "]}";
}

}  // namespace sft::server::openai
