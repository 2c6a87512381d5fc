#pragma once

#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/scheduling/reconciler.h"
#include "server/stored/checkpoints.h"

namespace sft::server {

// The thread that ticks the reconciler: once a second, and at once when something has changed.
class ReconcileLoop {
 public:
  static constexpr std::chrono::seconds kPeriod{1};
  // Between two looks for checkpoints that are to be deleted.
  static constexpr std::chrono::minutes kSweepPeriod{1};

  ~ReconcileLoop() { Stop(); }

  // May be called before Start, and from any thread.
  void Wake();
  // Both are borrowed until Stop.
  void Start(Reconciler& reconciler, Checkpoints& checkpoints);
  void Stop();

 private:
  void Loop(Reconciler& reconciler, Checkpoints& checkpoints);
  // After a tick that took so long.
  void Rest(Nanos worked);

  // A tick of this length needs no rest, and no rest is longer.
  static constexpr std::chrono::milliseconds kShortTick{5}, kLongestRest{1000};
  // Rest for each time of work.
  static constexpr int kRestShare = 9;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ SFT_GUARDED_BY(mutex_) = false;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
