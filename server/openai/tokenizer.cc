#include "server/openai/tokenizer.h"

#include <vector>

#include "common/base/json.h"
#include "server/openai/fields.h"

namespace sft::server::openai {

absl::StatusOr<AskedTokenizer<v1::TokenizeRequest>> ReadTokenize(const std::string& body) {
  SFT_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  AskedTokenizer<v1::TokenizeRequest> asked;
  SFT_ASSIGN_OR_RETURN(const auto model, fields.Text("model"));
  asked.model = model.value_or("");
  SFT_ASSIGN_OR_RETURN(const auto text, fields.Text("prompt"));
  if (!text.has_value()) return fields.Error("prompt", "is missing");
  asked.request.set_text(*text);
  SFT_ASSIGN_OR_RETURN(const auto special, fields.Flag("add_special_tokens"));
  asked.request.set_add_special_tokens(special.value_or(true));
  SFT_RETURN_IF_ERROR(fields.RefuseOthers());
  return asked;
}

absl::StatusOr<AskedTokenizer<v1::DetokenizeRequest>> ReadDetokenize(const std::string& body) {
  SFT_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  AskedTokenizer<v1::DetokenizeRequest> asked;
  SFT_ASSIGN_OR_RETURN(const auto model, fields.Text("model"));
  asked.model = model.value_or("");
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return fields.Error("tokens", "is no list");
  SFT_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TokenIds(*tokens, "tokens"));
  asked.request.mutable_tokens()->Add(ids.begin(), ids.end());
  SFT_RETURN_IF_ERROR(fields.RefuseOthers());
  return asked;
}

std::string TokenizeJson(const v1::TokenizeResponse& answer) {
  return DumpJson(
      Json{{"tokens", std::vector<int32_t>(answer.tokens().begin(), answer.tokens().end())},
           {"count", answer.tokens_size()},
           {"max_model_len", answer.max_tokens()}});
}

std::string DetokenizeJson(const v1::DetokenizeResponse& answer) {
  return DumpJson(Json{{"prompt", answer.text()}});
}

std::string TokenizerJson(const v1::ServedTokenizer& answer) {
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  return DumpJson(Json{{"bos_token", text(answer.bos_token())},
                       {"eos_token", text(answer.eos_token())},
                       {"pad_token", nullptr},
                       {"chat_template", text(answer.chat_template())},
                       {"model_max_length", answer.max_tokens()}});
}

}  // namespace sft::server::openai
