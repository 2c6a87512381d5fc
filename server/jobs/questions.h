#pragma once

#include <string>

#include "common/base/status.h"
#include "sft/v1/job_service.pb.h"
#include "sft/v1/serving_service.pb.h"

// Questions to the process of a job that serves, and what it answers, as lines of JSON.

namespace sft::server {

// INVALID_ARGUMENT for a question that is none, or too large.
absl::StatusOr<std::string> QuestionOf(const v1::GenerateRequest& request);
absl::StatusOr<std::string> QuestionOf(const v1::CompleteRequest& request);
absl::StatusOr<std::string> QuestionOf(const v1::TokenizeRequest& request);
absl::StatusOr<std::string> QuestionOf(const v1::DetokenizeRequest& request);
std::string QuestionAboutTokenizer();

// How many answers a question gets.
int64_t AnswersOf(const v1::CompleteRequest& request);

// What a process wrote is material, as all that nodes send: UNAVAILABLE for a line that is none of
// its answers. INVALID_ARGUMENT where the process refuses the question.
absl::Status TakeLine(const std::string& line, v1::GenerateResponse& piece);
absl::Status TakeLine(const std::string& line, v1::CompleteResponse& piece);
// These add to what came before, and say whether it was the last line.
absl::StatusOr<bool> TakeLine(const std::string& line, v1::TokenizeResponse& answer);
absl::StatusOr<bool> TakeLine(const std::string& line, v1::DetokenizeResponse& answer);
absl::StatusOr<bool> TakeLine(const std::string& line, v1::ServedTokenizer& answer);

}  // namespace sft::server
