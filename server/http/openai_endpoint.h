#pragma once

#include <list>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "server/door/methods.h"
#include "server/http/body_parsers.h"
#include "server/http/http_call.h"
#include "server/http/openai_creates.h"
#include "sft/v1/serving_service.pb.h"

namespace sft::server {

// The OpenAI-compatible endpoint: /v1/models, /v1/chat/completions, /v1/completions and the routes
// of a remote tokenizer, each also below /jobs/JOB; /v1/files and /v1/fine_tuning/jobs. A transport
// beside gRPC: requests and answers are translated (server/openai), and the door admits, runs and
// records the call. A thread for each request, kMostCalls at most; one more ends the oldest whose
// body has not come, and is refused where there is none. Thread-safe.
class OpenAiEndpoint {
 public:
  static constexpr int kMostCalls = 128, kMostRefused = 32;
  static constexpr size_t kMostBodyBytes = 4 << 20;

  // Both are borrowed.
  OpenAiEndpoint(Door& door, const Methods& methods) : door_(door), methods_(methods) {}
  // Ends the calls under way.
  ~OpenAiEndpoint();

  static bool Takes(const HttpRequest& request);
  void Take(std::shared_ptr<HttpStream> stream) SFT_EXCLUDES(mutex_);

 private:
  struct Running {
    std::thread thread;
    HttpCall::Shared shared;
    bool done = false;
  };
  // Joins the threads that have ended.
  void Reap() SFT_REQUIRES(mutex_);
  // Whether there is a place for one more.
  bool MakeRoom() SFT_REQUIRES(mutex_);

  Door& door_;
  const Methods& methods_;
  BodyParsers parsers_;
  OpenAiCreates creates_;
  Mutex mutex_;
  std::list<Running> running_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
