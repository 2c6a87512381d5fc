#pragma once

#include <string>

#include "common/base/status.h"
#include "sft/v1/serving_service.pb.h"

namespace sft::server::openai {

// Answers that one request may have: prompts times `n`.
inline constexpr int kMostAnswers = 128;

// What a request to /v1/chat/completions or /v1/completions asks for.
struct Asked {
  bool chat = false;
  std::string model;  // empty: it names none
  bool stream = false;
  bool include_usage = false;
  v1::CompleteRequest request;  // without the job's name
};

// Translates the body of such a request. INVALID_ARGUMENT names the parameter that is wrong, or one
// that is not served.
absl::StatusOr<Asked> ReadChat(const std::string& body);
absl::StatusOr<Asked> ReadCompletion(const std::string& body);

}  // namespace sft::server::openai
