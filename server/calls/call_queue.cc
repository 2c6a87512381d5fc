#include "server/calls/call_queue.h"

#include "common/obs/log.h"
#include "server/calls/queued_call.h"

namespace sft::server {

void CallQueue::Start(std::unique_ptr<grpc::ServerCompletionQueue> queue) {
  queue_ = std::move(queue);
  thread_ = std::thread([this] {
    obs::NameThread("poller");
    Loop();
  });
}

void CallQueue::Stop() {
  if (queue_ == nullptr) return;
  {
    const MutexLock lock(mutex_);
    while (calls_ > 0) changed_.Wait(mutex_);
  }
  queue_->Shutdown();
  thread_.join();
  queue_.reset();
}

void CallQueue::Loop() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<QueuedCall::Event*>(tag)->Happen(ok);
}

void CallQueue::Count(int change) {
  const MutexLock lock(mutex_);
  calls_ += change;
  changed_.NotifyAll();
}

}  // namespace sft::server
