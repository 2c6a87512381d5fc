#pragma once

#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/blob/metric_log.h"
#include "server/blob/tensorboard.h"
#include "server/store/store.h"

namespace sft::server {

// What gets old is made small: curves of jobs that ended long ago are thinned, once an hour.
class Housekeeping {
 public:
  static constexpr std::chrono::hours kPeriod{1};
  // Points that a thinned curve has, about.
  static constexpr int64_t kThinnedPoints = 10'000;

  // All but the time borrowed. `thin_after` counts from a job's end; 0: never.
  Housekeeping(Store& store, Clock& clock, MetricLog& metrics, TensorBoard& tensorboard,
               Nanos thin_after)
      : store_(store),
        clock_(clock),
        metrics_(metrics),
        tensorboard_(tensorboard),
        thin_after_(thin_after) {}
  ~Housekeeping() { Stop(); }

  // Begins to tick in a thread of its own.
  void Start();
  void Stop();
  // One round.
  absl::Status Tick(int64_t max_points = kThinnedPoints);

 private:
  void Loop();

  Store& store_;
  Clock& clock_;
  MetricLog& metrics_;
  TensorBoard& tensorboard_;
  const Nanos thin_after_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
