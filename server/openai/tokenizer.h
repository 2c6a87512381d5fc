#pragma once

#include <string>

#include "common/base/status.h"
#include "sft/v1/serving_service.pb.h"

// The routes of a remote tokenizer, as vLLM has them and lm_eval asks them.

namespace sft::server::openai {

// A request, and the model that it names; mostly none.
template <typename Request>
struct AskedTokenizer {
  std::string model;
  Request request;  // without the job's name
};

// {"prompt": "text", "add_special_tokens": true}
absl::StatusOr<AskedTokenizer<v1::TokenizeRequest>> ReadTokenize(const std::string& body);
// {"tokens": [...]}
absl::StatusOr<AskedTokenizer<v1::DetokenizeRequest>> ReadDetokenize(const std::string& body);

std::string TokenizeJson(const v1::TokenizeResponse& answer);
std::string DetokenizeJson(const v1::DetokenizeResponse& answer);
std::string TokenizerJson(const v1::ServedTokenizer& answer);

}  // namespace sft::server::openai
