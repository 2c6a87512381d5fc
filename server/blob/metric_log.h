#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "server/blob/rank_log.h"
#include "server/blob/segment_file.h"
#include "server/state/records.h"

namespace sft::server {

// One point of a training curve: a step, a validation's loss, or a further value of a validation.
struct MetricPoint {
  int64_t attempt = 0;
  int64_t step = 0;
  int32_t is_eval = 0;  // 0: a step, 1: a validation's loss, from 2 on: its further values
  float of_limit = 0;
  int64_t total_steps = 0;
  int64_t tokens = 0;
  int64_t gpu_memory_bytes = 0;
  int64_t time_us = 0;
  double loss = 0, lr = 0, grad_norm = 0, tokens_per_second = 0, mfu = 0, val_loss = 0;
  double step_seconds = 0, epoch = 0;
  std::optional<PreferenceFigures> preference;
  std::vector<AxisTraffic> traffic;  // of a step
  // A further value of a validation, which has no other members than those that say when it was.
  std::string name;
  double value = 0;
};

// Training curves of jobs: one file per job of fixed-size records, at offset index × 128.
// Thread-safe.
//
//   record: "SFTM" as little-endian uint32, a version as uint32, then little-endian the bytes of
//   version 1  PlainRecord, the members of MetricPoint; of_limit was zeros once
//   version 2  PreferenceRecord (metric_log_record.cc): with preferences, some members narrower
//   version 3  ValueRecord: a value with its name
//   version 4  TrafficRecord: a step with the traffic of up to four axes, whose names are known
//   version 5  the same with preferences
//   128 bytes in all.
class MetricLog {
 public:
  static constexpr int64_t kRecordBytes = 128;
  static constexpr size_t kMaxName = 80;  // bytes of MetricPoint::name
  static constexpr size_t kMaxOpen = 64;

  explicit MetricLog(const std::string& dir) : dir_(dir), ranks_(dir) {}

  // Appends the points that come after the last stored one in the order (attempt, step, is_eval),
  // so that points sent twice are stored once. Durable when it returns.
  absl::Status Append(const std::string& job_id, const std::vector<MetricPoint>& points);
  // Up to `max` points from `index`; fewer only at the end.
  absl::StatusOr<std::vector<MetricPoint>> Read(const std::string& job_id, int64_t index, int max);
  absl::StatusOr<int64_t> Count(const std::string& job_id);
  // The last point; nullopt if there is none.
  absl::StatusOr<std::optional<MetricPoint>> Last(const std::string& job_id);

  // Start of each attempt's points, oldest attempt first.
  struct Start {
    int64_t attempt = 0;
    int64_t index = 0;  // index of its first point
    int64_t step = 0;   // step of its first point
  };
  absl::StatusOr<std::vector<Start>> Starts(const std::string& job_id);

  // Thins the curve of an ended job to about `max_points` evenly spread steps, every validation,
  // the first point of each attempt and the last of all. Steps that a later attempt ran again are
  // removed. Indexes change. Does nothing when there are less than twice as many steps, which
  // NeedsThinning tells.
  absl::Status Thin(const std::string& job_id, int64_t max_points);
  absl::StatusOr<bool> NeedsThinning(const std::string& job_id, int64_t max_points);
  // Removes the curve of an ended job; OK if it is missing.
  absl::Status Remove(const std::string& job_id);
  // What each rank says of itself; removed with the curve.
  RankLog& ranks() { return ranks_; }
  // Ids of jobs that have a curve.
  absl::StatusOr<std::vector<std::string>> Jobs() const;

 private:
  struct Entry {
    std::string job_id;
    SegmentFile file;
  };
  absl::StatusOr<SegmentFile*> Find(const std::string& job_id) SFT_REQUIRES(mutex_);
  static absl::StatusOr<std::optional<MetricPoint>> LastOf(const SegmentFile& file,
                                                           const std::string& job_id);
  // Number of points in a curve that are not validations.
  absl::StatusOr<int64_t> CountSteps(const SegmentFile& file, const std::string& job_id)
      SFT_REQUIRES(mutex_);
  absl::StatusOr<std::vector<MetricPoint>> ReadPoints(const SegmentFile& file, int64_t index,
                                                      int64_t max, const std::string& job_id)
      SFT_REQUIRES(mutex_);
  absl::StatusOr<std::vector<Start>> FindStarts(const SegmentFile& file, const std::string& job_id)
      SFT_REQUIRES(mutex_);

  const std::string dir_;
  RankLog ranks_;
  Mutex mutex_;
  std::list<Entry> open_ SFT_GUARDED_BY(mutex_);
};

// The record of a point, kRecordBytes long, and back; DATA_LOSS for what is none.
std::string EncodeMetric(const MetricPoint& point);
absl::StatusOr<MetricPoint> DecodeMetric(std::string_view record, const std::string& job_id);

// True when a later attempt ran the point's step again, as its first step was this one or an
// earlier one: the curve then shows the later attempt's point.
bool IsSuperseded(const MetricPoint& point, const std::vector<MetricLog::Start>& starts);

}  // namespace sft::server
