#pragma once

#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/blob/metric_log.h"
#include "server/blob/tensorboard.h"
#include "server/core/disk_watch.h"
#include "server/core/failed_calls.h"
#include "server/store/store.h"
#include "server/stored/removal.h"

namespace sft::server {

// What gets old is made small or goes: curves of jobs that ended long ago are thinned, and what is
// over its age limit is removed, once an hour. Every few seconds the disk is looked at, and calls
// that failed are written down.
class Housekeeping {
 public:
  static constexpr std::chrono::hours kPeriod{1};
  // Points that a thinned curve has, about.
  static constexpr int64_t kThinnedPoints = 10'000;

  static constexpr std::chrono::seconds kShortPeriod{5};

  // All but the time borrowed; the last three may be null. `thin_after` counts from a job's end; 0:
  // never.
  Housekeeping(Store& store, Clock& clock, MetricLog& metrics, TensorBoard& tensorboard,
               Nanos thin_after, Removal* removal = nullptr, DiskWatch* disk = nullptr,
               FailedCalls* failed = nullptr)
      : store_(store),
        clock_(clock),
        metrics_(metrics),
        tensorboard_(tensorboard),
        thin_after_(thin_after),
        removal_(removal),
        disk_(disk),
        failed_(failed) {}
  ~Housekeeping() { Stop(); }

  // Begins to tick in a thread of its own.
  void Start();
  void Stop();
  // One round.
  absl::Status Tick(int64_t max_points = kThinnedPoints);

 private:
  void Loop();
  void LookAround();
  // The curve of one job, if it is due.
  absl::Status Thin(const std::string& id, int64_t max_points);

  Store& store_;
  Clock& clock_;
  MetricLog& metrics_;
  TensorBoard& tensorboard_;
  const Nanos thin_after_;
  Removal* const removal_;
  DiskWatch* const disk_;
  FailedCalls* const failed_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
