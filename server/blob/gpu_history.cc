#include "server/blob/gpu_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/io/file.h"

namespace sft::server {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

struct Record {
  char magic[4] = {'S', 'F', 'T', 'U'};
  uint32_t minute = 0;
  uint16_t slot = 0;
  uint8_t utilization = 0, celsius = 0;
  uint16_t watts = 0, unused = 0;
  int64_t memory = 0;
};
static_assert(sizeof(Record) == 24);

template <typename To>
To Clamped(double value) {
  constexpr double kMost = std::numeric_limits<To>::max();
  return static_cast<To>(std::clamp(std::round(value), 0.0, kMost));
}

std::string BytesOf(int64_t minute, const GpuReading& reading) {
  Record record;
  record.minute = static_cast<uint32_t>(minute);
  record.slot = static_cast<uint16_t>(reading.slot);
  record.utilization = Clamped<uint8_t>(reading.utilization_percent);
  record.celsius = Clamped<uint8_t>(reading.temperature_celsius);
  record.watts = Clamped<uint16_t>(reading.power_watts);
  record.memory = reading.memory_bytes;
  return {reinterpret_cast<const char*>(&record), sizeof(record)};
}

// Readings of one GPU that become one.
class Mean {
 public:
  void Add(const GpuReading& reading) {
    use_.slot = reading.slot;
    use_.memory_bytes = std::max(use_.memory_bytes, reading.memory_bytes);
    use_.temperature_celsius = std::max(use_.temperature_celsius, reading.temperature_celsius);
    utilization_ += static_cast<double>(reading.utilization_percent);
    watts_ += static_cast<double>(reading.power_watts);
    ++count_;
  }
  GpuReading use() const {
    GpuReading use = use_;
    use.utilization_percent = static_cast<float>(utilization_ / count_);
    use.power_watts = static_cast<float>(watts_ / count_);
    return use;
  }

 private:
  GpuReading use_;
  double utilization_ = 0, watts_ = 0;
  int count_ = 0;
};

// By span and slot.
class Spans {
 public:
  explicit Spans(int64_t step_us) : step_us_(step_us) {}
  void Add(int64_t time_us, const GpuReading& reading) {
    means_[{time_us / step_us_, reading.slot}].Add(reading);
  }
  template <typename Take>
  void Each(const Take& take) const {
    for (const auto& [key, mean] : means_) take(key.first * step_us_, mean.use());
  }

 private:
  const int64_t step_us_;
  std::map<std::pair<int64_t, int>, Mean> means_;
};

// The readings of a file; a torn or damaged record is left out.
template <typename Take>
absl::Status EachOf(const std::string& path, const Take& take) {
  constexpr int64_t kMaxFile = int64_t{64} << 20;
  absl::StatusOr<std::string> bytes = io::ReadFile(path, kMaxFile);
  if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(bytes.status());
  const Record model;
  for (size_t at = 0; at + sizeof(Record) <= bytes->size(); at += sizeof(Record)) {
    Record record;
    std::memcpy(&record, bytes->data() + at, sizeof(record));
    if (std::memcmp(record.magic, model.magic, sizeof(model.magic)) != 0) continue;
    GpuReading reading;
    reading.slot = record.slot;
    reading.memory_bytes = record.memory;
    reading.utilization_percent = record.utilization;
    reading.power_watts = record.watts;
    reading.temperature_celsius = record.celsius;
    take(static_cast<int64_t>(record.minute) * GpuHistory::kMinuteUs, reading);
  }
  return absl::OkStatus();
}

}  // namespace

std::string GpuHistory::PathOf(const std::string& node, int64_t day) const {
  return fmt::format("{}/{}/{}", dir_, node, day);
}

void GpuHistory::Add(const std::string& node, int64_t now_us, std::vector<GpuReading> readings) {
  if (readings.empty()) return;
  const MutexLock lock(mutex_);
  if (nodes_.size() >= kMaxNodes && !nodes_.contains(node)) return;
  Node& known = nodes_[node];
  // A clock that was set back is followed.
  const bool is_early = !known.moments.empty() && now_us >= known.moments.back().time_us &&
                        now_us - known.moments.back().time_us < kFineUs;
  if (is_early) return;
  while (!known.moments.empty() && known.moments.back().time_us > now_us) known.moments.pop_back();
  const int64_t minute_us = now_us / kMinuteUs * kMinuteUs;
  if (known.moments.empty() || known.written_us > minute_us) known.written_us = minute_us;
  known.moments.push_back({now_us, std::move(readings)});
}

absl::Status GpuHistory::Flush(int64_t now_us) {
  const int64_t over_us = now_us / kMinuteUs * kMinuteUs;
  const MutexLock files_lock(files_mutex_);
  std::map<std::string, std::string> bytes;  // by path
  {
    const MutexLock lock(mutex_);
    for (auto& [name, node] : nodes_) {
      Spans minutes(kMinuteUs);
      for (const Moment& moment : node.moments) {
        if (moment.time_us < node.written_us || moment.time_us >= over_us) continue;
        for (const GpuReading& reading : moment.readings) minutes.Add(moment.time_us, reading);
      }
      minutes.Each([&, path = name](int64_t time_us, const GpuReading& use) {
        bytes[PathOf(path, time_us / kDayUs)] += BytesOf(time_us / kMinuteUs, use);
      });
      node.written_us = std::max(node.written_us, over_us);
      while (!node.moments.empty() && node.moments.front().time_us < now_us - kFineKeptUs) {
        node.moments.pop_front();
      }
    }
    std::erase_if(nodes_, [](const auto& each) { return each.second.moments.empty(); });
  }
  absl::Status first_error;
  for (const auto& [path, text] : bytes) {
    absl::Status written = io::MakeDirs(path.substr(0, path.rfind('/')));
    if (written.ok()) {
      absl::StatusOr<io::AppendFile> file = io::AppendFile::Open(path);
      written = file.status();
      // What a crash has torn would shift all that follows.
      if (written.ok()) written = file->Truncate(file->size() - file->size() % sizeof(Record));
      if (written.ok()) written = file->Append(text);
    }
    first_error.Update(written);
  }
  if (now_us / kDayUs != cleaned_day_) {
    first_error.Update(RemoveOld(now_us));
    cleaned_day_ = now_us / kDayUs;
  }
  return first_error;
}

absl::Status GpuHistory::RemoveOld(int64_t now_us) {
  const int64_t oldest = now_us / kDayUs - kDaysKept;
  const absl::StatusOr<std::vector<std::string>> nodes = io::ListDir(dir_);
  if (absl::IsNotFound(nodes.status())) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(nodes.status());
  for (const std::string& node : *nodes) {
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> days, io::ListDir(dir_ + "/" + node));
    size_t left = days.size();
    for (const std::string& name : days) {
      int64_t day = 0;
      std::from_chars(name.data(), name.data() + name.size(), day);
      if (day >= oldest) continue;
      SFT_RETURN_IF_ERROR(io::RemoveAll(dir_ + "/" + node + "/" + name));
      --left;
    }
    if (left == 0) SFT_RETURN_IF_ERROR(io::RemoveAll(dir_ + "/" + node));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<int, std::vector<GpuHistory::Point>>> GpuHistory::Read(
    const std::string& node, int64_t begin_us, int64_t end_us, int64_t step_us) {
  Spans spans(step_us);
  // What is before this is in files alone.
  int64_t fine_from_us = end_us;
  std::deque<Moment> moments;
  const MutexLock files_lock(files_mutex_);
  {
    const MutexLock lock(mutex_);
    const auto known = nodes_.find(node);
    if (known != nodes_.end()) moments = known->second.moments;
  }
  if (!moments.empty()) fine_from_us = std::min(end_us, moments.front().time_us);
  for (const Moment& moment : moments) {
    if (moment.time_us < begin_us || moment.time_us > end_us) continue;
    for (const GpuReading& reading : moment.readings) spans.Add(moment.time_us, reading);
  }
  for (int64_t day = begin_us / kDayUs; day <= fine_from_us / kDayUs; ++day) {
    SFT_RETURN_IF_ERROR(EachOf(PathOf(node, day), [&](int64_t time_us, const GpuReading& reading) {
      if (time_us >= begin_us && time_us + kMinuteUs <= fine_from_us) spans.Add(time_us, reading);
    }));
  }
  std::map<int, std::vector<Point>> points;
  spans.Each([&](int64_t time_us, const GpuReading& use) {
    points[use.slot].push_back({time_us, use});
  });
  return points;
}

}  // namespace sft::server
