#pragma once

#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"
#include "sft/v1/worker_service.pb.h"

// What a job goes on from, and which checkpoints are kept for that. Every function runs inside one
// transaction of the store.

namespace sft::server {

// Committed checkpoints from which the job can go on, in the order in which they are tried: its
// own, newest first, then those of the job that it continues.
absl::StatusOr<std::vector<CheckpointRecord>> ResumeCandidates(Database& db, const JobRecord& job);

// Why an ended job cannot be resumed from `checkpoints`, its candidates; OK when it can. `step` 0:
// from any.
absl::Status CheckResumable(const JobRecord& job, const std::vector<CheckpointRecord>& checkpoints,
                            int64_t step);

// The place of the attempt's checkpoint as its node sees it; nothing is set for an attempt that
// begins at step 0.
absl::Status FillResume(Database& db, const JobRecord& job, const AttemptRecord& attempt,
                        const std::string& node, v1::Dispatch& dispatch);

// An attempt on the way to where a job is, and the step at which the next one left it.
struct BranchPart {
  std::string attempt_uid;
  int64_t up_to = 0;
};

// Moves checkpoints (newest first) that are not on that way behind those that are. An attempt that
// began before others' checkpoints, since these were out of reach, leaves them beside its way.
// Pure.
std::vector<CheckpointRecord> BranchFirst(std::vector<CheckpointRecord> checkpoints,
                                          const std::vector<BranchPart>& branch);

// Which of a job's checkpoints (not deleted, in the order of BranchFirst) go. Kept are the first
// `save_total_limit` (0: all) committed ones, the first of the best ones, the ones named in
// `protected_steps`, and what the live attempt `live_uid` has not committed yet. Pure.
std::vector<CheckpointRecord> SupersededCheckpoints(
    const std::vector<CheckpointRecord>& checkpoints, int save_total_limit,
    const std::string& live_uid, const std::vector<int64_t>& protected_steps);

// Deletes what SupersededCheckpoints says; returns the blobs that nothing refers to any more. Of a
// job whose settings cannot be read none is deleted.
absl::StatusOr<std::vector<std::string>> TrimCheckpoints(Database& db, const std::string& job_id,
                                                         int64_t now_us);

}  // namespace sft::server
