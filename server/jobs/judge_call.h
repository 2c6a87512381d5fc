#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/hub/http.h"
#include "server/fleet/file_relay.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// One call of an OpenAI-compatible API: POST URL/chat/completions with one message.
struct JudgeCall {
  std::string url;  // without /chat/completions
  std::string model;
  std::string key;  // sent as a bearer token; empty: none
  std::string prompt;
  int max_tokens = 512;
  std::chrono::seconds timeout{60};  // for the whole answer
  // Held until the call has ended, which may be after its waiter has left; null: nothing is.
  std::shared_ptr<const void> place;
};

// Makes the call in a thread of its own and waits for it, until its time is over, `stop` is set or
// `gone` (null: never) says that nobody wants the answer: a connection that stands still then keeps
// nobody waiting, and ends by its own limit. What the API says wrong is part of the response,
// without the key; UNAVAILABLE where `stop` was set, CANCELLED where the asker has gone,
// RESOURCE_EXHAUSTED where the system has no thread for the call.
absl::StatusOr<v1::AskJudgeResponse> MakeJudgeCall(std::shared_ptr<hub::HttpClient> http,
                                                   const JudgeCall& call, Clock& clock,
                                                   const std::atomic<bool>& stop,
                                                   const FileRelay::Gone& gone = nullptr);

}  // namespace sft::server
