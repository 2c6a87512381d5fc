#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

// Errors as OpenAI's API has them: a status of HTTP and {"error": {"message", "type", "param",
// "code"}}.

namespace sft::server::openai {

// INVALID_ARGUMENT that names a parameter of the request.
absl::Status ParamError(std::string_view param, const std::string& message);
// INVALID_ARGUMENT that names none yet, as one in this parameter; any other status as it is.
absl::Status InParam(std::string_view param, absl::Status status);
// NOT_FOUND for what is no model, or no page.
absl::Status NoModel(const std::string& message);
// NOT_FOUND of something that this parameter names; any other status as it is.
absl::Status NotFoundIn(std::string_view param, absl::Status status);

// What HTTP answers with for an error.
struct ErrorAnswer {
  int http_status = 500;
  std::string body;       // JSON
  int retry_after_s = 0;  // 0: the same again would fail again
  bool again = false;     // the same again may succeed
};
// What was asked: a model that answers, or a file or a job that trains. Of the second a state that
// does not allow what is asked (FAILED_PRECONDITION) is a conflict.
enum class Asks { kModel, kTraining };
// OUT_OF_RANGE stands for a body that is too large, UNIMPLEMENTED for a method that a path does not
// have, DEADLINE_EXCEEDED for a request that does not come, CANCELLED
// for one whose caller sends no more.
ErrorAnswer ErrorOf(const absl::Status& status, Asks asks = Asks::kModel);

}  // namespace sft::server::openai
