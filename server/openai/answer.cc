#include "server/openai/answer.h"

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
    choice.characters += Characters(token.text());
  }
  return tokens;
}

void Answer::Append(Json& tokens, const Json& more) {
  for (const auto& item : more.items()) {
    if (!item.value().is_array()) continue;
    for (const Json& each : item.value()) tokens[item.key()].push_back(each);
  }
}

Answer::Json Answer::AddTokens(const v1::CompleteResponse& piece, Choice& choice) const {
  if (!asked_.request.has_logprobs()) return nullptr;
  Json fresh = asked_.chat ? ChatTokens(piece) : TextTokens(piece, choice);
  if (asked_.stream) return piece.tokens().empty() ? Json() : fresh;
  if (choice.tokens.is_null()) {
    choice.tokens = std::move(fresh);
  } else {
    Append(choice.tokens, fresh);
  }
  return nullptr;
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
  const Json tokens = AddTokens(piece, choice);
  if (!piece.finish_reason().empty()) {
    choice.finish_reason = piece.finish_reason();
    if (piece.index() % std::max(asked_.request.samples(), 1) == 0) {
      prompt_tokens_ += piece.prompt_tokens();
    }
    answer_tokens_ += piece.answer_tokens();
  }
  std::vector<std::string> events;
  if (!asked_.stream) {
    choice.text += piece.text();
  } else if (!piece.text().empty() || !tokens.is_null() || !piece.finish_reason().empty()) {
    events.push_back(Event(piece.index(), choice, piece.text(), tokens, piece.finish_reason()));
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

Answer::Json Answer::ChoiceJson(int32_t index, const Choice& choice) const {
  Json json = {{"index", index}};
  if (asked_.chat) {
    json["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
  } else {
    json["text"] = choice.text;
  }
  json["logprobs"] = choice.tokens;
  json["finish_reason"] = OrNull(choice.finish_reason);
  return json;
}

std::string Answer::Whole() const {
  Json whole = Head(asked_.chat ? "chat.completion" : "text_completion");
  whole["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    whole["choices"].push_back(ChoiceJson(static_cast<int32_t>(i), choices_[i]));
  }
  whole["usage"] = Usage();
  return DumpJson(whole);
}

}  // namespace sft::server::openai
