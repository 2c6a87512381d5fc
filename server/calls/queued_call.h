#pragma once

#include <atomic>
#include <functional>

#include "server/calls/call_queue.h"

namespace sft::server {

// A call that holds no thread: what happens to it comes through the queue. It deletes itself when
// nothing that it has begun is outstanding.
class QueuedCall {
 public:
  // What a call waits for, and the tag of it in the queue. Happens once for each time it was begun.
  class Event final {
   public:
    Event(QueuedCall& call, std::function<void(bool ok)> reaction)
        : call_(call), reaction_(std::move(reaction)) {}
    // To be given to the library, which brings it back.
    Event* Begin() {
      call_.Hold();
      return this;
    }
    void Happen(bool ok) {
      reaction_(ok);
      call_.Release();
    }

   private:
    QueuedCall& call_;
    const std::function<void(bool)> reaction_;
  };

  virtual ~QueuedCall() { queue_.Count(-1); }
  QueuedCall(const QueuedCall&) = delete;

  // Whoever comes back to the call holds it; the last one that lets go deletes it.
  void Hold() { ++held_; }
  void Release();

 protected:
  // Borrowed. Who made it holds it first.
  explicit QueuedCall(CallQueue& queue) : queue_(queue) { queue_.Count(1); }

 private:
  CallQueue& queue_;
  std::atomic<int> held_{0};
};

}  // namespace sft::server
