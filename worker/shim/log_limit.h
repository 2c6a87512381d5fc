#pragma once

#include <string>

#include "common/base/status.h"
#include "common/io/file.h"
#include "worker/channel/launch.h"

namespace sft::shim {

// Keeps one process's log from filling the node's disk, whatever the process writes and whether or
// not a worker or a server is there to read it. The process is never stopped for it: the middle of
// the file becomes a hole, its offsets stay (channel::LogGap). One thread.
class LogLimit {
 public:
  // Of the file's beginning, which is always kept.
  static constexpr int64_t kHeadBytes = 1 << 20;

  // Of `<dir>/<name>.log`; makes `<dir>/<name>.gap` now, so that a full disk later needs no new
  // block. `limit_bytes` 0: does nothing, ever.
  static absl::StatusOr<LogLimit> Make(const std::string& dir, const std::string& name,
                                       int64_t limit_bytes);

  // Looks at the file's size. UNIMPLEMENTED where the file system cannot make holes.
  absl::Status Check();

 private:
  std::string log_path_;
  int64_t limit_ = 0;
  io::UniqueFd gap_file_;
  channel::LogGap gap_;
};

}  // namespace sft::shim
