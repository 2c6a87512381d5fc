#include "server/app/reconcile_loop.h"

#include <spdlog/spdlog.h>

#include "common/obs/log.h"

namespace sft::server {

void ReconcileLoop::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void ReconcileLoop::Start(Reconciler& reconciler, Checkpoints& checkpoints) {
  thread_ = std::thread([this, &reconciler, &checkpoints] { Loop(reconciler, checkpoints); });
}

void ReconcileLoop::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ReconcileLoop::Loop(Reconciler& reconciler, Checkpoints& checkpoints) {
  obs::NameThread("reconcile");
  std::string last_error;
  MonoTime swept = Clock::Real().Mono() - kSweepPeriod;
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!woken_ && !stopping_) changed_.WaitFor(mutex_, kPeriod);
      if (stopping_) return;
      woken_ = false;
    }
    reconciler.Beat();
    absl::Status ticked = reconciler.Tick();
    if (Clock::Real().Mono() - swept >= kSweepPeriod) {
      swept = Clock::Real().Mono();
      ticked.Update(checkpoints.Sweep());
    }
    // Said once, not every second: a full disk may last.
    const std::string error = ticked.ok() ? "" : std::string(Message(ticked));
    if (error != last_error && !error.empty()) spdlog::error("reconcile: {}", error);
    if (error.empty() && !last_error.empty()) spdlog::info("reconcile: works again");
    last_error = error;
  }
}

}  // namespace sft::server
