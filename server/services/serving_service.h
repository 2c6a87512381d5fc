#pragma once

#include <string>

#include "common/base/mutex.h"
#include "server/door/methods.h"
#include "server/jobs/serving.h"
#include "sft/v1/serving_service.pb.h"

namespace sft::server {

// ServingService: jobs that serve, as programs ask them.
class ServingService final {
 public:
  // Borrowed.
  explicit ServingService(Serving& serving) : serving_(serving) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);
  // Where the HTTP endpoint is, once it is there.
  void SetBaseUrl(const std::string& url) {
    const MutexLock lock(mutex_);
    base_url_ = url;
  }

  absl::StatusOr<v1::ListServedModelsResponse> ListServedModels(
      CallContext& call, const v1::ListServedModelsRequest& request);
  absl::Status Complete(CallContext& call, const v1::CompleteRequest& request,
                        Sink<v1::CompleteResponse>& sink);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(CallContext& call,
                                                const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(CallContext& call,
                                                    const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::ServedTokenizer> GetTokenizer(CallContext& call,
                                                   const v1::GetTokenizerRequest& request);

 private:
  Serving& serving_;
  Mutex mutex_;
  std::string base_url_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
