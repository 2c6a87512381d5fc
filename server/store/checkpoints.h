#pragma once

#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// Rows of checkpoints, their parts on nodes and their blobs; and of failures that blame a node. As
// jobs.h.

namespace sft::server::store {

// Registers a node's part of a checkpoint, and the checkpoint with its first part; commits it when
// `parts_needed` are there. A repeat changes nothing; one that was deleted stays deleted. Returns
// the row as it is afterwards, without its parts.
absl::StatusOr<CheckpointRecord> PutCheckpointPart(Database& db, const CheckpointRecord& checkpoint,
                                                   const CheckpointPart& part,
                                                   const std::vector<ArtifactFileRecord>& files,
                                                   int parts_needed);

// Those of a job that are not deleted, newest step first, with their parts.
absl::StatusOr<std::vector<CheckpointRecord>> CheckpointsOfJob(Database& db,
                                                               const std::string& job_id);
// The newest step that was ever committed, deleted or not; 0: none.
absl::StatusOr<int64_t> NewestStep(Database& db, const std::string& job_id);
// The same of those that one attempt wrote.
absl::StatusOr<int64_t> NewestStepOf(Database& db, const std::string& attempt_uid);
// How many the attempt wrote because it was asked to, also such as are deleted by now.
absl::StatusOr<int64_t> CountAsked(Database& db, const std::string& attempt_uid);
// When the newest was committed; 0: there is none.
absl::StatusOr<int64_t> NewestCommit(Database& db, const std::string& job_id);
absl::StatusOr<std::vector<ArtifactFileRecord>> FilesOfCheckpoint(Database& db,
                                                                  const std::string& attempt_uid,
                                                                  int64_t step);
absl::Status SetCheckpointProblem(Database& db, const std::string& attempt_uid, int64_t step,
                                  const std::string& problem);
// Of every checkpoint that has the file and none yet.
absl::Status SetProblemOfBlob(Database& db, const std::string& sha256, const std::string& problem);
// Marks it as deleted and returns its blobs that nothing refers to any more.
absl::StatusOr<std::vector<std::string>> DeleteCheckpoint(Database& db,
                                                          const std::string& attempt_uid,
                                                          int64_t step, int64_t now_us);
absl::StatusOr<bool> CheckpointBlobInUse(Database& db, const std::string& sha256);

// What shall lie on a node: kept checkpoints with a part in its own folder.
struct KeptStep {
  std::string job_id;
  int64_t step = 0;
  bool ended = false;  // of KeptInShared: the job has ended
};
absl::StatusOr<std::vector<KeptStep>> KeptOnNode(Database& db, const std::string& node);
// Of jobs that wrote into the shared folder: what is kept (step > 0), and the jobs that have ended
// and had one deleted since `since_us` (step 0).
absl::StatusOr<std::vector<KeptStep>> KeptInShared(Database& db, int64_t since_us);

// Jobs with checkpoints that are not deleted.
absl::StatusOr<std::vector<std::string>> JobsWithCheckpoints(Database& db);
// Of them those that succeeded, or ended otherwise, before a time.
absl::StatusOr<std::vector<std::string>> EndedJobsWithCheckpoints(Database& db,
                                                                  int64_t succeeded_before_us,
                                                                  int64_t ended_before_us,
                                                                  int limit);
// Whether a job that has not ended, and has committed none of its own, goes on from this one.
absl::StatusOr<bool> IsResumedByLiveJob(Database& db, const std::string& job_id);

absl::Status AddNodeFault(Database& db, const NodeFault& fault);
// Oldest first by node, younger than `since_us`.
absl::StatusOr<std::vector<NodeFault>> NodeFaults(Database& db, int64_t since_us);
absl::Status DropNodeFaults(Database& db, int64_t before_us);

}  // namespace sft::server::store
