#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sft::server {

// What a node said of one of its GPUs.
struct GpuReading {
  int slot = 0;
  int64_t memory_bytes = 0;
  float utilization_percent = 0;
  float power_watts = 0;  // 0: not known
  int temperature_celsius = 0;
};

// The use of the nodes' GPUs over time: to 10 s for two hours, in memory; to a minute for a week,
// in one file for each node and day, `gpu-use/<node>/<day since 1970>`. Files are of fixed-size
// records and are not synced: a crash may lose the last minutes. Thread-safe.
//
//   record, little-endian, 24 bytes: "SFTU", the minute since 1970 as uint32, slot as uint16,
//   utilisation in percent and temperature as uint8, watts as uint16, two zero bytes, bytes of
//   memory as int64
class GpuHistory {
 public:
  static constexpr int64_t kFineUs = 10'000'000, kFineKeptUs = int64_t{2} * 3600 * 1'000'000;
  static constexpr int64_t kMinuteUs = 60'000'000, kDayUs = int64_t{24} * 3600 * 1'000'000;
  static constexpr int kDaysKept = 7;
  // Nodes in memory at once; those of further ones are left out. A node with 8 GPUs takes 120 kB.
  static constexpr size_t kMaxNodes = 2000;

  explicit GpuHistory(std::string dir) : dir_(std::move(dir)) {}

  // Takes readings of one moment; those within 10 s of the last ones are left out. Waits for no
  // disk.
  void Add(const std::string& node, int64_t now_us, std::vector<GpuReading> readings)
      SFT_EXCLUDES(mutex_);
  // Writes the minutes that are over, and removes files and readings that are too old. Called every
  // few seconds by one thread.
  absl::Status Flush(int64_t now_us) SFT_EXCLUDES(mutex_, files_mutex_);

  // A GPU's use in a span of time: the most memory and the highest temperature, means of the
  // others.
  struct Point {
    int64_t time_us = 0;  // its begin
    GpuReading use;
  };
  // From `begin_us` to `end_us`, in spans of `step_us`; by slot, oldest first. Spans without
  // readings are left out.
  absl::StatusOr<std::map<int, std::vector<Point>>> Read(const std::string& node, int64_t begin_us,
                                                         int64_t end_us, int64_t step_us)
      SFT_EXCLUDES(mutex_, files_mutex_);

 private:
  struct Moment {
    int64_t time_us = 0;
    std::vector<GpuReading> readings;
  };
  struct Node {
    std::deque<Moment> moments;
    int64_t written_us = 0;  // minutes before this are in files
  };
  std::string PathOf(const std::string& node, int64_t day) const;
  absl::Status RemoveOld(int64_t now_us) SFT_REQUIRES(files_mutex_);

  const std::string dir_;
  Mutex files_mutex_;  // of the files; taken before the other
  int64_t cleaned_day_ SFT_GUARDED_BY(files_mutex_) = 0;
  Mutex mutex_;
  std::map<std::string, Node> nodes_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
