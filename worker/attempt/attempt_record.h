#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::worker {

// What a worker must remember of an attempt to go on with it after a restart:
// <attempt dir>/attempt.json. Everything else is read again from the shim's files and the server.
struct AttemptRecord {
  std::string uid;
  int64_t epoch = 0;
  v1::Dispatch dispatch;
  // The shim may have been started: from here on its status.json tells.
  bool launched = false;
  // The node's monotonic clock, and its count of processes killed for memory, at the launch.
  int64_t launched_ns = 0;
  int64_t oom_kills_before = 0;
  // GPU memory in use before the launch, in the order of the dispatch's slots.
  std::vector<int64_t> memory_before;
  // What the watch found, before the ranks were told to end for it: why they end, also for a worker
  // that is started again meanwhile.
  v1::Verdict finding;
  // Newest checkpoint that is registered with the server, and how many were asked for.
  int64_t checkpoint_step = 0;
  int64_t checkpoints_asked = 0;
  // Whom its ranks run as, and so who may read what they wrote; 0: as the worker does.
  uint32_t rank_uid = 0;
  uint32_t rank_gid = 0;
  // The artifact is registered with the server.
  bool committed = false;
  // All is over and acknowledged.
  bool done = false;
  // Set once the processes have ended, or could not start; and when that was, by this node's clock
  // (microseconds since the Unix epoch; 0: an older worker wrote this).
  v1::Verdict verdict;
  int64_t ended_us = 0;

  bool has_verdict() const { return !verdict.code().empty(); }
};

absl::Status SaveRecord(const AttemptRecord& record, const std::string& attempt_dir);
// NOT_FOUND when there is none, INVALID_ARGUMENT when it cannot be read.
absl::StatusOr<AttemptRecord> LoadRecord(const std::string& attempt_dir);

}  // namespace sft::worker
