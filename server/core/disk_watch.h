#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/io/disk_space.h"
#include "sft/v1/node.pb.h"

namespace sft::server {

// How full the disk of the server's data folder is, against two marks: at the first operators are
// told, at the second nothing new is taken in, while what runs goes on and is kept. Thread-safe.
class DiskWatch {
 public:
  // `clock` is borrowed.
  DiskWatch(std::string dir, io::DiskMarks marks, Clock& clock)
      : dir_(std::move(dir)), marks_(marks), clock_(clock) {}

  // Measured at most once in kPeriod. Says in the log when the level changes.
  static constexpr std::chrono::seconds kPeriod{1};
  v1::NodeDisk Look();
  // Whether `bytes` more may be taken in: RESOURCE_EXHAUSTED, with what to do, beyond the second
  // mark.
  absl::Status CheckRoom(std::string_view what, int64_t bytes);
  // The same of what an attempt delivers, for which a part of what stays free is kept: all but the
  // last quarter, without which the database could not write.
  absl::Status CheckDelivery(int64_t bytes);
  // For whoever asks about the fleet; empty: there is room.
  std::string Warning();

 private:
  const std::string dir_;
  const io::DiskMarks marks_;
  Clock& clock_;
  Mutex mutex_;
  v1::NodeDisk disk_ SFT_GUARDED_BY(mutex_);
  MonoTime measured_ SFT_GUARDED_BY(mutex_){};
  bool known_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
