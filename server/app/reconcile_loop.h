#pragma once

#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/obs/histogram.h"
#include "server/scheduling/reconciler.h"
#include "server/stored/checkpoints.h"

namespace sft::server {

// The thread that ticks the reconciler: once a second, and immediately after a change.
class ReconcileLoop {
 public:
  static constexpr std::chrono::seconds kPeriod{1};
  // Interval between sweeps for checkpoints to delete.
  static constexpr std::chrono::minutes kSweepPeriod{1};

  ~ReconcileLoop() { Stop(); }

  // May be called before Start, and from any thread.
  void Wake();
  // Both are borrowed until Stop.
  void Start(Reconciler& reconciler, Checkpoints& checkpoints);
  void Stop();
  // How long its ticks took.
  const obs::Histogram& tick_seconds() const { return tick_seconds_; }

 private:
  void Loop(Reconciler& reconciler, Checkpoints& checkpoints);
  // Rests after a tick that took `worked`.
  void Rest(Nanos worked);

  // A tick up to kShortTick needs no rest; no rest is longer than kLongestRest.
  static constexpr std::chrono::milliseconds kShortTick{5}, kLongestRest{1000};
  // Rest per unit of work.
  static constexpr int kRestShare = 9;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ SFT_GUARDED_BY(mutex_) = false;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  obs::Histogram tick_seconds_;
  std::thread thread_;
};

}  // namespace sft::server
