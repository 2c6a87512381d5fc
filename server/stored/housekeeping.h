#pragma once

#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/blob/gpu_history.h"
#include "server/blob/metric_log.h"
#include "server/blob/tensorboard.h"
#include "server/core/disk_watch.h"
#include "server/core/failed_calls.h"
#include "server/store/store.h"
#include "server/stored/removal.h"

namespace sft::server {

// Periodic housekeeping: once an hour, curves of jobs that ended long ago are thinned and data over
// its age limit is removed; every few seconds, free disk space is checked, of which webhooks are
// told once it is low, and failed calls and the use of GPUs are written.
class Housekeeping {
 public:
  static constexpr std::chrono::hours kPeriod{1};
  // Approximate number of points in a thinned curve.
  static constexpr int64_t kThinnedPoints = 10'000;

  static constexpr std::chrono::seconds kShortPeriod{5};

  // All but the time are borrowed; the last five may be null. `thin_after` counts from a job's
  // end; 0: never. `tidy_hooks` removes webhooks of jobs that ended long ago.
  Housekeeping(Store& store, Clock& clock, MetricLog& metrics, TensorBoard& tensorboard,
               Nanos thin_after, Removal* removal = nullptr, DiskWatch* disk = nullptr,
               FailedCalls* failed = nullptr, GpuHistory* gpus = nullptr,
               std::function<absl::Status()> tidy_hooks = nullptr)
      : store_(store),
        clock_(clock),
        metrics_(metrics),
        tensorboard_(tensorboard),
        thin_after_(thin_after),
        removal_(removal),
        disk_(disk),
        failed_(failed),
        gpus_(gpus),
        tidy_hooks_(std::move(tidy_hooks)) {}
  ~Housekeeping() { Stop(); }

  // Starts a thread that ticks.
  void Start();
  void Stop();
  // One round.
  absl::Status Tick(int64_t max_points = kThinnedPoints);
  // What is done every few seconds.
  void LookAround();

 private:
  void Loop();
  // Puts a change of the disk's level into the feed of events.
  void NoteDisk(const v1::NodeDisk& disk);
  // Tells webhooks when it becomes low.
  void TellLowDisk(const v1::NodeDisk& disk);
  // Thins the curve of one job, if it is due.
  absl::Status Thin(const std::string& id, int64_t max_points);

  Store& store_;
  Clock& clock_;
  MetricLog& metrics_;
  TensorBoard& tensorboard_;
  const Nanos thin_after_;
  Removal* const removal_;
  DiskWatch* const disk_;
  FailedCalls* const failed_;
  GpuHistory* const gpus_;
  const std::function<absl::Status()> tidy_hooks_;
  v1::NodeDisk::Level disk_level_ = v1::NodeDisk::OK;  // of the ticking thread alone
  bool low_ = false;  // webhooks were told of it; used by the one who looks around
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
