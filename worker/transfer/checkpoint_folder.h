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
//   <data>/checkpoints/<job>/step-<n>.fetch       being downloaded for a resume
//   .../answers                                   of a job that answers prompts, until delivered
//
// Where ranks run as another user, all of it belongs to that user, except the first two folders and
// downloads.

namespace sft::worker {

// The folder that a job's ranks write to.
std::string CheckpointDir(const std::string& job_id, const NodeSetup& setup);
// The answers of a job so far, inside of it.
std::string AnswersDir(const std::string& job_id, const NodeSetup& setup);
// The folder of checkpoints below the shared folder; empty without one.
std::string SharedCheckpointPath(const std::string& job_id, const NodeSetup& setup);

// Makes <data>/checkpoints/<job> writable for ranks, and gives them the files in it.
absl::Status OpenCheckpointFolder(const std::string& job_id, const NodeSetup& setup);

// The step in a folder's name, "step-40" or "step-40.partial"; 0 for any other name.
int64_t StepOfFolder(const std::string& name);

// Brings all files of a checkpoint here and returns their folder. Missing blobs are downloaded and
// verified, into the job's own folder, which appears whole or not at all. DATA_LOSS when it is not
// where the server says; other errors as Stager::Stage.
absl::StatusOr<std::string> StageCheckpoint(const v1::Resume& resume, const std::string& job_id,
                                            const NodeSetup& setup, ServerApi& server,
                                            const StopCheck& stop);

// A job with attempts on this node.
struct LiveJob {
  std::set<int64_t> in_use;  // steps that they continue from, which may be being downloaded
  int64_t settled = 0;       // a step at or above it may still be written or unregistered
};
using LiveJobs = std::map<std::string, LiveJob>;

// True when the same jobs have settled more than before.
bool HaveSettled(const LiveJobs& before, const LiveJobs& now);

// Deletes the checkpoints that the server does not keep (the rule is in CheckpointSet), except
// those that a live attempt needs. Tries everything and returns the first error.
absl::Status CleanCheckpoints(const v1::CheckpointSet& kept, const LiveJobs& live_jobs,
                              const NodeSetup& setup);

}  // namespace sft::worker
