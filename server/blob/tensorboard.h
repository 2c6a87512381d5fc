#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/blob/metric_log.h"

namespace sft::server {

// Writes TensorBoard's event files of jobs from their metrics. Thread-safe. The files hold nothing
// of their own: a metric's attempt and index determine its file and record, so that records missing
// after a crash are written from the metrics, each point exactly once.
//
//   <dir>/<job id>/events.out.tfevents.<time of the attempt's first point>.attempt-<000n>
//   `tensorboard --logdir <dir>` shows every job as a run.
//
// Scalars: train/loss, train/lr, train/grad_norm, train/tokens_per_second, train/gpu_memory_gb,
// train/mfu, train/epoch and eval/loss. A later attempt begins with a restart record at its first
// step: readers drop the steps that it runs again.
class TensorBoard {
 public:
  // Jobs whose position is cached.
  static constexpr size_t kMaxKnown = 256;

  explicit TensorBoard(std::string dir) : dir_(std::move(dir)) {}

  // Writes the metrics that the job's files lack.
  absl::Status Update(const std::string& job_id, MetricLog& metrics);
  // Thins the metrics (MetricLog::Thin) and rewrites the files from the rest. Touches neither where
  // there is nothing to thin.
  absl::Status Thin(const std::string& job_id, MetricLog& metrics, int64_t max_points);
  // Removes the job's files; they are rewritten while the metrics exist. The next update inspects
  // the files again, because the metrics have changed.
  void Forget(const std::string& job_id);
  absl::Status Remove(const std::string& job_id);
  // Paths of the job's files, in the order of the attempts.
  absl::StatusOr<std::vector<std::string>> Files(const std::string& job_id) const;

 private:
  // Write position of a job's files.
  struct Position {
    int64_t index = 0;    // index of the next point
    int64_t attempt = 0;  // attempt of the file written last
    std::string path;
  };
  absl::StatusOr<Position> Find(const std::string& job_id, MetricLog& metrics) SFT_REQUIRES(mutex_);
  absl::Status UpdateLocked(const std::string& job_id, MetricLog& metrics) SFT_REQUIRES(mutex_);
  absl::Status WritePoints(const std::string& job_id, const std::vector<MetricPoint>& points,
                           Position& position) SFT_REQUIRES(mutex_);

  const std::string dir_;
  Mutex mutex_;
  std::map<std::string, Position> known_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
