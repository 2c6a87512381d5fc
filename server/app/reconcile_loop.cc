#include "server/app/reconcile_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/base/duration.h"
#include "common/obs/log.h"
#include "common/obs/service_manager.h"

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

// With thousands of jobs a tick is long, and a stream of submits asks for one after the other: the
// rests leave the store to others most of the time.
void ReconcileLoop::Rest(Nanos worked) {
  if (worked < kShortTick) return;
  const MonoTime until = Clock::Real().Mono() + std::min<Nanos>(kRestShare * worked, kLongestRest);
  MutexLock lock(mutex_);
  while (!stopping_ && Clock::Real().Mono() < until) {
    changed_.WaitFor(mutex_, until - Clock::Real().Mono());
  }
}

void ReconcileLoop::Loop(Reconciler& reconciler, Checkpoints& checkpoints) {
  obs::NameThread("reconcile");
  std::string last_error;
  MonoTime swept = Clock::Real().Mono() - kSweepPeriod;
  while (true) {
    bool woken = false;
    {
      MutexLock lock(mutex_);
      if (!woken_ && !stopping_) changed_.WaitFor(mutex_, kPeriod);
      if (stopping_) return;
      woken = std::exchange(woken_, false);
    }
    reconciler.Beat();
    absl::Status ticked;
    const MonoTime begin = Clock::Real().Mono();
    const bool works = woken || reconciler.HasWork();
    if (works) ticked = reconciler.Tick();
    const Nanos worked = Clock::Real().Mono() - begin;
    if (works) tick_seconds_.Observe(SecondsOf(worked));
    Rest(worked);
    if (Clock::Real().Mono() - swept >= kSweepPeriod) {
      swept = Clock::Real().Mono();
      ticked.Update(checkpoints.Sweep());
    }
    // Logged once, not every second: a full disk may last.
    const std::string error = ticked.ok() ? "" : std::string(Message(ticked));
    if (error != last_error && !error.empty()) spdlog::error("reconcile: {}", error);
    if (error.empty() && !last_error.empty()) spdlog::info("reconcile: works again");
    last_error = error;
    obs::TellServiceManager("WATCHDOG=1");
  }
}

}  // namespace sft::server
