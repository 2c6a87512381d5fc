#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>

#include "common/base/mutex.h"

namespace sft::server {

// Keeps the library's threads for callbacks awake. One that has had nothing to do for 1 s sleeps
// for 100 ms (CallbackAlternativeCQ in gRPC 1.51), and because these threads also watch the sockets
// for all others, every call of the server stands still meanwhile: once a second, under any load of
// plain calls. A call that ends at once, a few times a second, is all they need.
class QueuePulse {
 public:
  // `channel` to the server itself; nothing is sent over it.
  explicit QueuePulse(std::shared_ptr<grpc::Channel> channel);
  ~QueuePulse();
  QueuePulse(const QueuePulse&) = delete;

 private:
  void Loop() SFT_EXCLUDES(mutex_);

  const std::shared_ptr<grpc::Channel> channel_;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
