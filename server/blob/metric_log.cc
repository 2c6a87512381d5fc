#include "server/blob/metric_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace sft::server {
namespace {

static_assert(SegmentFile::kSegmentBytes % MetricLog::kRecordBytes == 0);

// Points processed at a time when a curve is thinned.
constexpr int64_t kThinBatch = 4096;
constexpr char kFirstSegment[] = "00000000000000000000.seg";

absl::Status RemoveSegmentsButFirst(const std::string& folder) {
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
  for (const std::string& name : names) {
    if (name == kFirstSegment || !name.ends_with(".seg")) continue;
    SFT_RETURN_IF_ERROR(io::RemoveAll(folder + "/" + name));
  }
  return absl::OkStatus();
}

// Cuts off an unreadable end: it is as good as lost, and nothing could be appended behind it.
absl::Status CutUnreadable(SegmentFile& file, const std::string& job_id) {
  const int64_t before = file.size();
  while (file.size() > 0) {
    SFT_ASSIGN_OR_RETURN(const std::string record,
                         file.Read(file.size() - MetricLog::kRecordBytes, MetricLog::kRecordBytes));
    const bool whole = static_cast<int64_t>(record.size()) == MetricLog::kRecordBytes;
    if (whole && DecodeMetric(record, job_id).ok()) break;
    SFT_RETURN_IF_ERROR(file.TruncateTail(file.size() - MetricLog::kRecordBytes));
  }
  if (file.size() < before) {
    spdlog::error("metrics of {}: the last {} points were damaged on the disk", job_id,
                  (before - file.size()) / MetricLog::kRecordBytes);
  }
  return absl::OkStatus();
}

auto Order(const MetricPoint& point) {
  return std::tuple(point.attempt, point.step, point.is_eval);
}

}  // namespace

absl::StatusOr<SegmentFile*> MetricLog::Find(const std::string& job_id) {
  const auto known = std::find_if(open_.begin(), open_.end(),
                                  [&](const Entry& entry) { return entry.job_id == job_id; });
  if (known != open_.end() && !known->file.IsIntact()) {
    open_.erase(known);
  } else if (known != open_.end()) {
    open_.splice(open_.begin(), open_, known);
    return &open_.front().file;
  }
  SFT_ASSIGN_OR_RETURN(SegmentFile file, SegmentFile::Open(dir_ + "/" + job_id));
  // A hole is left by an interrupted thinning: the segments after it are old ones.
  if (file.stored_bytes() != file.size()) {
    SFT_RETURN_IF_ERROR(RemoveSegmentsButFirst(dir_ + "/" + job_id));
    SFT_ASSIGN_OR_RETURN(file, SegmentFile::Open(dir_ + "/" + job_id));
  }
  // A record torn by a power failure; its batch was never acknowledged.
  SFT_RETURN_IF_ERROR(file.TruncateTail(file.size() - file.size() % kRecordBytes));
  SFT_RETURN_IF_ERROR(CutUnreadable(file, job_id));
  open_.push_front({job_id, std::move(file)});
  if (open_.size() > kMaxOpen) open_.pop_back();
  return &open_.front().file;
}

absl::StatusOr<std::optional<MetricPoint>> MetricLog::LastOf(const SegmentFile& file,
                                                             const std::string& job_id) {
  if (file.size() == 0) return std::optional<MetricPoint>();
  SFT_ASSIGN_OR_RETURN(const std::string record,
                       file.Read(file.size() - kRecordBytes, kRecordBytes));
  SFT_ASSIGN_OR_RETURN(const MetricPoint point, DecodeMetric(record, job_id));
  return std::optional<MetricPoint>(point);
}

absl::StatusOr<std::optional<MetricPoint>> MetricLog::Last(const std::string& job_id) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(job_id));
  return LastOf(*file, job_id);
}

absl::Status MetricLog::Append(const std::string& job_id, const std::vector<MetricPoint>& points) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(job_id));
  auto last = std::tuple<int64_t, int64_t, int64_t>(-1, -1, -1);
  SFT_ASSIGN_OR_RETURN(const std::optional<MetricPoint> stored, LastOf(*file, job_id));
  if (stored) last = Order(*stored);
  std::string bytes;
  for (const MetricPoint& point : points) {
    if (Order(point) <= last) continue;
    last = Order(point);
    bytes += EncodeMetric(point);
  }
  if (bytes.empty()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(file->Append(file->size(), bytes).status());
  return file->Sync();
}

absl::StatusOr<std::vector<MetricPoint>> MetricLog::ReadPoints(const SegmentFile& file,
                                                               int64_t index, int64_t max,
                                                               const std::string& job_id) {
  std::vector<MetricPoint> points;
  if (index >= file.size() / kRecordBytes) return points;
  SFT_ASSIGN_OR_RETURN(const std::string bytes,
                       file.Read(index * kRecordBytes, max * kRecordBytes));
  for (size_t at = 0; at + kRecordBytes <= bytes.size(); at += kRecordBytes) {
    SFT_ASSIGN_OR_RETURN(points.emplace_back(),
                         DecodeMetric(std::string_view(bytes).substr(at, kRecordBytes), job_id));
  }
  return points;
}

absl::StatusOr<std::vector<MetricPoint>> MetricLog::Read(const std::string& job_id, int64_t index,
                                                         int max) {
  if (index < 0) return InvalidArgument(fmt::format("metric index {}", index));
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(job_id));
  return ReadPoints(*file, index, max, job_id);
}

// Points are ordered by attempt: each attempt's first one is found by bisection.
absl::StatusOr<std::vector<MetricLog::Start>> MetricLog::FindStarts(const SegmentFile& file,
                                                                    const std::string& job_id) {
  const int64_t count = file.size() / kRecordBytes;
  const auto at = [&](int64_t index) SFT_REQUIRES(mutex_) -> absl::StatusOr<MetricPoint> {
    SFT_ASSIGN_OR_RETURN(const std::vector<MetricPoint> one, ReadPoints(file, index, 1, job_id));
    if (one.empty()) return DataLoss(fmt::format("a stored metric of {} is gone", job_id));
    return one.front();
  };
  std::vector<Start> starts;
  for (int64_t index = 0; index < count;) {
    SFT_ASSIGN_OR_RETURN(const MetricPoint first, at(index));
    starts.push_back({first.attempt, index, first.step});
    int64_t low = index + 1, high = count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      SFT_ASSIGN_OR_RETURN(const MetricPoint point, at(middle));
      if (point.attempt > first.attempt) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    index = low;
  }
  return starts;
}

absl::Status MetricLog::Remove(const std::string& job_id) {
  MutexLock lock(mutex_);
  open_.remove_if([&](const Entry& entry) { return entry.job_id == job_id; });
  return io::RemoveAll(dir_ + "/" + job_id);
}

absl::StatusOr<std::vector<MetricLog::Start>> MetricLog::Starts(const std::string& job_id) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(job_id));
  return FindStarts(*file, job_id);
}

bool IsSuperseded(const MetricPoint& point, const std::vector<MetricLog::Start>& starts) {
  return std::any_of(starts.begin(), starts.end(), [&](const MetricLog::Start& start) {
    return start.attempt > point.attempt && start.step <= point.step;
  });
}

absl::StatusOr<int64_t> MetricLog::CountSteps(const SegmentFile& file, const std::string& job_id) {
  const int64_t count = file.size() / kRecordBytes;
  int64_t steps = 0;
  for (int64_t index = 0; index < count; index += kThinBatch) {
    SFT_ASSIGN_OR_RETURN(const auto points, ReadPoints(file, index, kThinBatch, job_id));
    steps += std::count_if(points.begin(), points.end(),
                           [](const MetricPoint& point) { return point.is_eval == 0; });
  }
  return steps;
}

absl::StatusOr<bool> MetricLog::NeedsThinning(const std::string& job_id, int64_t max_points) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(job_id));
  // Most curves are short and need no look at their points.
  if (file->size() / kRecordBytes < 2 * max_points) return false;
  SFT_ASSIGN_OR_RETURN(const int64_t steps, CountSteps(*file, job_id));
  return steps >= 2 * max_points;
}

absl::Status MetricLog::Thin(const std::string& job_id, int64_t max_points) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const SegmentFile* file, Find(job_id));
  const int64_t count = file->size() / kRecordBytes;
  SFT_ASSIGN_OR_RETURN(const std::vector<Start> starts, FindStarts(*file, job_id));
  SFT_ASSIGN_OR_RETURN(const int64_t steps, CountSteps(*file, job_id));
  // A thinned curve is not thinned again.
  if (steps < 2 * max_points) return absl::OkStatus();
  const int64_t every = (steps + max_points - 1) / max_points;
  std::string kept;
  int64_t attempt = 0, step_number = 0;
  for (int64_t index = 0; index < count; index += kThinBatch) {
    SFT_ASSIGN_OR_RETURN(const auto points, ReadPoints(*file, index, kThinBatch, job_id));
    for (size_t i = 0; i < points.size(); ++i) {
      const MetricPoint& point = points[i];
      const bool first = point.attempt != std::exchange(attempt, point.attempt);
      const bool last = index + static_cast<int64_t>(i) + 1 == count;
      const bool spread = point.is_eval == 0 && step_number++ % every == 0;
      const bool wanted = (first || spread || point.is_eval != 0) && !IsSuperseded(point, starts);
      if (wanted || last) kept += EncodeMetric(point);
    }
  }
  // The new curve fits into the first segment, which is replaced atomically; the old others are
  // removed, now or when the curve is opened next.
  const std::string folder = dir_ + "/" + job_id;
  if (static_cast<int64_t>(kept.size()) > SegmentFile::kSegmentBytes) {
    return ResourceExhausted(fmt::format("{} has too many validations to be thinned", job_id));
  }
  open_.remove_if([&](const Entry& entry) { return entry.job_id == job_id; });
  SFT_RETURN_IF_ERROR(io::WriteFileAtomic(folder + "/" + kFirstSegment, kept));
  return RemoveSegmentsButFirst(folder);
}

absl::StatusOr<std::vector<std::string>> MetricLog::Jobs() const {
  if (!io::IsDirectory(dir_)) return std::vector<std::string>();
  return io::ListDir(dir_);
}

absl::StatusOr<int64_t> MetricLog::Count(const std::string& job_id) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(job_id));
  return file->size() / kRecordBytes;
}

}  // namespace sft::server
