#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/io/disk_space.h"
#include "sft/v1/node.pb.h"

namespace sft::server {

// Watches the free space of the server's data folder against two thresholds: below the first,
// operators are warned; below the second, no new data is accepted, while running jobs go on and
// their data is kept. Thread-safe.
class DiskWatch {
 public:
  // `clock` is borrowed.
  DiskWatch(std::string dir, io::DiskMarks marks, Clock& clock)
      : dir_(std::move(dir)), marks_(marks), clock_(clock) {}

  // The disk is measured at most once per kPeriod, and anew before anything is refused; a change of
  // level is logged.
  static constexpr std::chrono::seconds kPeriod{1};
  v1::NodeDisk Look() { return Measure(kPeriod); }
  // OK when `bytes` more may be accepted; RESOURCE_EXHAUSTED with advice beyond the second
  // threshold.
  absl::Status CheckRoom(std::string_view what, int64_t bytes);
  // The same for an attempt's deliveries, which may use part of the reserve: all but its last
  // quarter, without which the database could not write.
  absl::Status CheckDelivery(int64_t bytes);
  // A warning for those who ask about the fleet; empty when there is room.
  std::string Warning();

 private:
  // As it was measured at most so long ago.
  v1::NodeDisk Measure(Nanos oldest);
  // True if `bytes` more leave one part in `parts` of the second threshold free. `disk`: as
  // measured.
  bool HasRoom(int64_t bytes, int64_t parts, v1::NodeDisk& disk);

  const std::string dir_;
  const io::DiskMarks marks_;
  Clock& clock_;
  Mutex mutex_;
  v1::NodeDisk disk_ SFT_GUARDED_BY(mutex_);
  MonoTime measured_ SFT_GUARDED_BY(mutex_){};
  bool known_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
