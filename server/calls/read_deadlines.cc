#include "server/calls/read_deadlines.h"

#include <fmt/format.h>
#include <grpc/grpc.h>

#include <string>

namespace sft::server {

ReadDeadlines::ReadDeadlines(Clock& clock, Nanos patience)
    : clock_(clock), patience_(patience), thread_([this] { Loop(); }) {}

ReadDeadlines::~ReadDeadlines() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

ReadDeadlines::Wait::Wait(ReadDeadlines& deadlines, grpc::ServerContext& context)
    : deadlines_(deadlines), context_(context) {
  const MutexLock lock(deadlines_.mutex_);
  deadlines_.since_[&context_] = deadlines_.clock_.Mono();
  if (deadlines_.sleeps_) deadlines_.changed_.NotifyAll();
}

ReadDeadlines::Wait::~Wait() {
  const MutexLock lock(deadlines_.mutex_);
  deadlines_.since_.erase(&context_);
}

// With its status, unlike TryCancel: the client is to see that it may go on.
void ReadDeadlines::EndOverdue() {
  const MonoTime now = clock_.Mono();
  for (auto wait = since_.begin(); wait != since_.end();) {
    const auto [context, since] = *wait;
    if (now - since < patience_) {
      ++wait;
      continue;
    }
    const std::string why =
        fmt::format("nothing came for {} s: call again; StatBlob says what an upload has brought",
                    std::chrono::duration_cast<std::chrono::seconds>(patience_).count());
    grpc_call_cancel_with_status(context->c_call(), GRPC_STATUS_UNAVAILABLE, why.c_str(), nullptr);
    wait = since_.erase(wait);
  }
}

void ReadDeadlines::Loop() {
  const MutexLock lock(mutex_);
  while (!closing_) {
    sleeps_ = since_.empty();
    if (sleeps_) {
      changed_.Wait(mutex_);
    } else {
      // Not woken by each message: a wait is ended up to a quarter late.
      changed_.WaitFor(mutex_, patience_ / 4);
      EndOverdue();
    }
  }
}

}  // namespace sft::server
