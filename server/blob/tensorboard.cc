#include "server/blob/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <string>
#include <tuple>

#include "common/base/duration.h"
#include "common/io/file.h"
#include "server/blob/tf_events.h"

namespace sft::server {
namespace {

constexpr int kBatch = 1024;
constexpr int64_t kMaxFile = int64_t{1} << 30;

double Seconds(const MetricPoint& point) {
  return SecondsOf(std::chrono::microseconds(point.time_us));
}

std::string FileOf(const std::string& folder, const MetricPoint& first) {
  return fmt::format("{}/events.out.tfevents.{:010}.attempt-{:04}", folder,
                     std::max<int64_t>(0, first.time_us / 1'000'000), first.attempt);
}

// The records at the start of a file; those of a later attempt say from which step it replaces
// earlier ones.
std::string Preamble(const MetricPoint& first) {
  std::string bytes = tf_events::Record(tf_events::FileVersion(Seconds(first)));
  if (first.attempt > 1) {
    bytes += tf_events::Record(tf_events::Restart(Seconds(first), first.step));
  }
  return bytes;
}

// "val.rouge_l" is shown beside "eval/loss".
std::string TagOf(const std::string& name) {
  const size_t dot = name.find('.');
  return "eval/" + (dot == name.npos ? name : name.substr(dot + 1));
}

std::string PointRecord(const MetricPoint& point) {
  const auto f = [](double value) { return static_cast<float>(value); };
  tf_events::Scalars scalars;
  const std::string tag = TagOf(point.name);
  if (!point.name.empty()) {
    scalars = {{tag, f(point.value)}};
  } else if (point.is_eval != 0) {
    scalars = {{"eval/loss", f(point.val_loss)}};
  } else {
    scalars = {{"train/loss", f(point.loss)},
               {"train/lr", f(point.lr)},
               {"train/grad_norm", f(point.grad_norm)},
               {"train/tokens_per_second", f(point.tokens_per_second)},
               {"train/gpu_memory_gb", f(static_cast<double>(point.gpu_memory_bytes) / 1e9)},
               {"train/mfu", f(point.mfu)},
               {"train/epoch", f(point.epoch)}};
  }
  double waited = 0;
  std::list<std::string> tags;  // which scalars borrow
  for (const AxisTraffic& each : point.traffic) {
    waited += each.exposed_share;
    scalars.emplace_back(tags.emplace_back("train/comm/" + each.axis + "/exposed_share"),
                         f(each.exposed_share));
    scalars.emplace_back(tags.emplace_back("train/comm/" + each.axis + "/GBps"),
                         f(each.gigabytes_per_second));
  }
  if (!point.traffic.empty()) scalars.emplace_back("train/comm/exposed_share", f(waited));
  if (point.preference) {
    const PreferenceFigures& figures = *point.preference;
    const bool eval = point.is_eval != 0;
    for (const auto& [train, validation, value] :
         {std::tuple("train/rewards/chosen", "eval/rewards/chosen", figures.rewards_chosen),
          {"train/rewards/rejected", "eval/rewards/rejected", figures.rewards_rejected},
          {"train/rewards/margins", "eval/rewards/margins",
           figures.rewards_chosen - figures.rewards_rejected},
          {"train/rewards/accuracies", "eval/rewards/accuracies", figures.rewards_accuracies},
          {"train/logps/chosen", "eval/logps/chosen", figures.logps_chosen},
          {"train/logps/rejected", "eval/logps/rejected", figures.logps_rejected},
          {"train/kl", "eval/kl", figures.kl}}) {
      scalars.emplace_back(eval ? validation : train, value);
    }
  }
  return tf_events::Record(tf_events::Summary(Seconds(point), point.step, scalars));
}

// Cuts off an unfinished record; returns the number of whole ones.
absl::StatusOr<int64_t> Repair(const std::string& path) {
  if (!io::Exists(path)) return int64_t{0};
  SFT_ASSIGN_OR_RETURN(const std::string bytes, io::ReadFile(path, kMaxFile));
  const tf_events::Scan scan = tf_events::ScanRecords(bytes);
  if (scan.bytes < static_cast<int64_t>(bytes.size())) {
    SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(path));
    SFT_RETURN_IF_ERROR(file.Truncate(scan.bytes));
  }
  return scan.records;
}

}  // namespace

// The newest attempt that has points; those before it are complete.
absl::StatusOr<TensorBoard::Position> TensorBoard::Find(const std::string& job_id,
                                                        MetricLog& metrics) {
  const auto known = known_.find(job_id);
  if (known != known_.end()) return known->second;
  SFT_ASSIGN_OR_RETURN(const std::vector<MetricLog::Start> starts, metrics.Starts(job_id));
  Position position;
  for (size_t i = 0; i < starts.size(); ++i) {
    SFT_ASSIGN_OR_RETURN(const std::vector<MetricPoint> first,
                         metrics.Read(job_id, starts[i].index, 1));
    const std::string path = FileOf(dir_ + "/" + job_id, first.at(0));
    SFT_ASSIGN_OR_RETURN(const int64_t records, Repair(path));
    const int64_t preamble = first[0].attempt > 1 ? 2 : 1;
    // A torn preamble is written again, whole.
    if (records < preamble) {
      SFT_RETURN_IF_ERROR(io::RemoveAll(path));
      position.index = starts[i].index;
      break;
    }
    position = {starts[i].index + records - preamble, starts[i].attempt, path};
    const bool whole = i + 1 < starts.size() && position.index == starts[i + 1].index;
    if (!whole) break;
  }
  if (known_.size() >= kMaxKnown) known_.clear();
  known_[job_id] = position;
  return position;
}

absl::Status TensorBoard::WritePoints(const std::string& job_id,
                                      const std::vector<MetricPoint>& points, Position& position) {
  for (size_t i = 0; i < points.size();) {
    std::string bytes;
    Position next = position;
    const bool starts = position.path.empty() || points[i].attempt != position.attempt;
    if (starts) {
      next.attempt = points[i].attempt;
      next.path = FileOf(dir_ + "/" + job_id, points[i]);
      bytes = Preamble(points[i]);
    }
    for (; i < points.size() && points[i].attempt == next.attempt; ++i, ++next.index) {
      bytes += PointRecord(points[i]);
    }
    SFT_ASSIGN_OR_RETURN(io::AppendFile file, io::AppendFile::Open(next.path));
    // When writing from an attempt's first point, the file's old content is replaced.
    if (starts) SFT_RETURN_IF_ERROR(file.Truncate(0));
    SFT_RETURN_IF_ERROR(file.Append(bytes));
    position = next;
  }
  return absl::OkStatus();
}

absl::Status TensorBoard::Thin(const std::string& job_id, MetricLog& metrics, int64_t max_points) {
  MutexLock lock(mutex_);
  SFT_ASSIGN_OR_RETURN(const bool needed, metrics.NeedsThinning(job_id, max_points));
  if (!needed) return absl::OkStatus();
  // Files are removed first: after a crash they are made again from the metrics, whatever their
  // state.
  known_.erase(job_id);
  SFT_RETURN_IF_ERROR(io::RemoveAll(dir_ + "/" + job_id));
  SFT_RETURN_IF_ERROR(metrics.Thin(job_id, max_points));
  return UpdateLocked(job_id, metrics);
}

absl::Status TensorBoard::Update(const std::string& job_id, MetricLog& metrics) {
  MutexLock lock(mutex_);
  return UpdateLocked(job_id, metrics);
}

absl::Status TensorBoard::UpdateLocked(const std::string& job_id, MetricLog& metrics) {
  SFT_ASSIGN_OR_RETURN(Position position, Find(job_id, metrics));
  while (true) {
    SFT_ASSIGN_OR_RETURN(const std::vector<MetricPoint> points,
                         metrics.Read(job_id, position.index, kBatch));
    if (points.empty()) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(io::MakeDirs(dir_ + "/" + job_id));
    const absl::Status written = WritePoints(job_id, points, position);
    // After an error the position is read from the files.
    if (!written.ok()) known_.erase(job_id);
    SFT_RETURN_IF_ERROR(written);
    known_[job_id] = position;
  }
}

void TensorBoard::Forget(const std::string& job_id) {
  MutexLock lock(mutex_);
  known_.erase(job_id);
}

absl::Status TensorBoard::Remove(const std::string& job_id) {
  MutexLock lock(mutex_);
  known_.erase(job_id);
  return io::RemoveAll(dir_ + "/" + job_id);
}

absl::StatusOr<std::vector<std::string>> TensorBoard::Files(const std::string& job_id) const {
  const std::string folder = dir_ + "/" + job_id;
  std::vector<std::string> paths;
  if (!io::IsDirectory(folder)) return paths;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(folder));
  for (const std::string& name : names) paths.push_back(folder + "/" + name);
  return paths;
}

}  // namespace sft::server
