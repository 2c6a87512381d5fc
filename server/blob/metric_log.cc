#include "server/blob/metric_log.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include <fmt/format.h>

namespace sft::server {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");
static_assert(sizeof(MetricPoint) == MetricLog::kRecordBytes - 8);
static_assert(SegmentFile::kSegmentBytes % MetricLog::kRecordBytes == 0);

constexpr char kHeader[8] = {'S', 'F', 'T', 'M', 1, 0, 0, 0};

std::string Encode(const MetricPoint& point) {
  std::string bytes(kHeader, sizeof(kHeader));
  bytes.append(reinterpret_cast<const char*>(&point), sizeof(point));
  return bytes;
}

absl::StatusOr<MetricPoint> Decode(std::string_view record, const std::string& job_id) {
  if (std::memcmp(record.data(), kHeader, sizeof(kHeader)) != 0) {
    return DataLoss(fmt::format("a stored metric of {} cannot be read", job_id));
  }
  MetricPoint point;
  std::memcpy(&point, record.data() + sizeof(kHeader), sizeof(point));
  return point;
}

auto Order(const MetricPoint& point) {
  return std::tuple(point.attempt, point.step, point.is_eval);
}

}  // namespace

absl::StatusOr<SegmentFile*> MetricLog::Find(const std::string& job_id) {
  const auto known = std::find_if(open_.begin(), open_.end(),
                                  [&](const Entry& entry) { return entry.job_id == job_id; });
  if (known != open_.end()) {
    open_.splice(open_.begin(), open_, known);
    return &open_.front().file;
  }
  SFT_ASSIGN_OR_RETURN(SegmentFile file, SegmentFile::Open(dir_ + "/" + job_id));
  // A record cut short by a power failure; its batch was never acknowledged.
  SFT_RETURN_IF_ERROR(file.TruncateTail(file.size() - file.size() % kRecordBytes));
  open_.push_front({job_id, std::move(file)});
  if (open_.size() > kMaxOpen) open_.pop_back();
  return &open_.front().file;
}

absl::Status MetricLog::Append(const std::string& job_id, const std::vector<MetricPoint>& points) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(job_id));
  auto last = std::tuple<int64_t, int64_t, int64_t>(-1, -1, -1);
  if (file->size() > 0) {
    SFT_ASSIGN_OR_RETURN(const std::string record,
                         file->Read(file->size() - kRecordBytes, kRecordBytes));
    SFT_ASSIGN_OR_RETURN(const MetricPoint point, Decode(record, job_id));
    last = Order(point);
  }
  std::string bytes;
  for (const MetricPoint& point : points) {
    if (Order(point) <= last) continue;
    last = Order(point);
    bytes += Encode(point);
  }
  if (bytes.empty()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(file->Append(file->size(), bytes).status());
  return file->Sync();
}

absl::StatusOr<std::vector<MetricPoint>> MetricLog::Read(const std::string& job_id, int64_t index,
                                                         int max) {
  if (index < 0) return InvalidArgument(fmt::format("metric index {}", index));
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(job_id));
  std::vector<MetricPoint> points;
  if (index >= file->size() / kRecordBytes) return points;
  SFT_ASSIGN_OR_RETURN(const std::string bytes,
                       file->Read(index * kRecordBytes, max * kRecordBytes));
  for (size_t at = 0; at + kRecordBytes <= bytes.size(); at += kRecordBytes) {
    SFT_ASSIGN_OR_RETURN(points.emplace_back(),
                         Decode(std::string_view(bytes).substr(at, kRecordBytes), job_id));
  }
  return points;
}

absl::StatusOr<int64_t> MetricLog::Count(const std::string& job_id) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(SegmentFile * file, Find(job_id));
  return file->size() / kRecordBytes;
}

}  // namespace sft::server
