#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>

#include "common/base/mutex.h"

namespace sft::server {

// The library's completion queue of all calls that hold no thread, workers' streams and followers,
// and the one thread that polls it. As the only queue that is polled it also watches the sockets of
// the whole server: with a second polling thread the two would wake each other several times for
// each small message. So this thread never waits for anything else: what has to be stored or read
// is given to others.
class CallQueue {
 public:
  CallQueue() = default;
  ~CallQueue() { Stop(); }
  CallQueue(const CallQueue&) = delete;

  // From when the server has started that was built with the queue.
  void Start(std::unique_ptr<grpc::ServerCompletionQueue> queue);
  // After the server's shutdown: returns when no call is left.
  void Stop() SFT_EXCLUDES(mutex_);

  grpc::ServerCompletionQueue* get() const { return queue_.get(); }

 private:
  friend class QueuedCall;

  void Loop();
  void Count(int change) SFT_EXCLUDES(mutex_);

  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  Mutex mutex_;
  CondVar changed_;
  int calls_ SFT_GUARDED_BY(mutex_) = 0;  // with those that wait for their caller
  std::thread thread_;
};

}  // namespace sft::server
