#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sft::server {

// What a rank says of its own rows at a step, or means of several steps.
struct RankPoint {
  int32_t attempt = 0;
  int32_t told = 1;          // points that this one stands for
  int64_t step = 0;          // the last of them
  double loss = 0;           // their mean; NaN: not known
  int64_t memory_bytes = 0;  // the most
};

// Loss and memory of each rank over time, beside the job's curve: one file for each rank,
// `<job>/rank-<number>.points`, of at most kMaxPoints points, so of 32 kB, however long the job
// runs: when it is full two points become one each, and later ones stand for twice as many. Files
// are not synced: a crash may lose the last points. Thread-safe.
//
//   file: "SFTR", a version as uint32, how many told points one stands for as int64, then points of
//   32 bytes, little-endian as in RankPoint
class RankLog {
 public:
  static constexpr int kMaxPoints = 1024;

  // `dir` is that of the MetricLog, which removes a job's files with its curve.
  explicit RankLog(std::string dir) : dir_(std::move(dir)) {}

  // Appends points that come after the last one; those of an earlier attempt whose steps are run
  // again go.
  absl::Status Append(const std::string& job_id, int rank, const std::vector<RankPoint>& points)
      SFT_EXCLUDES(mutex_);
  // By rank; none for a job that has none. What is damaged is left out.
  absl::StatusOr<std::map<int, std::vector<RankPoint>>> Read(const std::string& job_id)
      SFT_EXCLUDES(mutex_);

 private:
  const std::string dir_;
  Mutex mutex_;  // of the files
};

}  // namespace sft::server
