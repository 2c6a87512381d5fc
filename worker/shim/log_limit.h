#pragma once

#include <string>

#include "common/base/status.h"
#include "common/io/file.h"
#include "worker/channel/launch.h"

namespace sft::shim {

// Keeps one process's log from filling the node's disk, whatever the process writes, even when no
// worker or server is there to read it. The process is never stopped for it: the middle of the file
// becomes a hole, and offsets stay (channel::LogGap). One thread.
class LogLimit {
 public:
  // Bytes at the file's beginning that are always kept.
  static constexpr int64_t kHeadBytes = 1 << 20;

  // Makes the limit of `<dir>/<name>.log`, and makes `<dir>/<name>.gap` now, so that a full disk
  // later needs no new block. With `limit_bytes` 0 it never does anything.
  static absl::StatusOr<LogLimit> Make(const std::string& dir, const std::string& name,
                                       int64_t limit_bytes);

  // Checks the file's size. UNIMPLEMENTED where the file system cannot make holes.
  absl::Status Check();

 private:
  std::string log_path_;
  int64_t limit_ = 0;
  io::UniqueFd gap_file_;
  channel::LogGap gap_;
};

}  // namespace sft::shim
