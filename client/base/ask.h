#pragma once

#include <functional>
#include <string>

#include "client/base/connection.h"
#include "sft/v1/job_service.pb.h"

namespace sft::client {

// One question to a job that serves, whose answer comes in pieces.
struct Asking {
  std::function<void(const std::string& text)> on_text;
  std::function<void(const std::string& why)> on_wait;  // it cannot answer yet
};

// A job that runs may still load its model, or answer as many questions as it can: waits then, for
// as long as a server may be away. Returns the last piece; FAILED_PRECONDITION for an answer that
// could not go on, CANCELLED after Ctrl-C.
absl::StatusOr<v1::GenerateResponse> AskServing(Connection& connection,
                                                const v1::GenerateRequest& request,
                                                const Asking& asking);

}  // namespace sft::client
