#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/base/status.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"
#include "worker/transfer/server_api.h"

// Checkpoints on a node's disk:
//
//   <data>/checkpoints/<job>/step-<n>             complete; without a shared folder
//   <shared>/<job>/checkpoints/step-<n>           complete; with one
//   .../step-<n>.partial                          ranks are writing it
//   <data>/checkpoints/<job>/step-<n>.fetch       is being brought here for a resume
//
// Where ranks run as another user, all of it is that user's but the first two folders and what is
// being brought.

namespace sft::worker {

// Where the ranks of a job write.
std::string CheckpointDir(const std::string& job_id, const NodeSetup& setup);
// The same below the shared folder; empty without one.
std::string SharedCheckpointPath(const std::string& job_id, const NodeSetup& setup);

// Makes <data>/checkpoints/<job> so that ranks can write there, and gives them what lies in it.
absl::Status OpenCheckpointFolder(const std::string& job_id, const NodeSetup& setup);

// The step of a folder's name, "step-40" or "step-40.partial"; 0: it is none.
int64_t StepOfFolder(const std::string& name);

// Brings all files of a checkpoint here and returns their folder: of blobs what is missing, each
// checked by its hash, into the job's own folder, which appears whole or not at all. DATA_LOSS when
// it is not where the server says; otherwise as Stager::Stage.
absl::StatusOr<std::string> StageCheckpoint(const v1::Resume& resume, const std::string& job_id,
                                            const NodeSetup& setup, ServerApi& server,
                                            const StopCheck& stop);

// A job with attempts on this node.
struct LiveJob {
  std::set<int64_t> in_use;  // steps that they go on from, which may be on their way here
  int64_t settled = 0;       // what is at or above it may be written or registered yet
};
using LiveJobs = std::map<std::string, LiveJob>;

// Whether the same jobs have settled more than before.
bool HaveSettled(const LiveJobs& before, const LiveJobs& now);

// Deletes what the server does not keep (the rule is in CheckpointSet), but for what a live attempt
// needs. The first error is returned after everything was tried.
absl::Status CleanCheckpoints(const v1::CheckpointSet& kept, const LiveJobs& live_jobs,
                              const NodeSetup& setup);

}  // namespace sft::worker
