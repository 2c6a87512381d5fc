#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// What is stored, for whom, and who needs it still. Lists go by key, a page at a time. As jobs.h.

namespace sft::server::store {

// Whose something is.
struct Holder {
  std::string job_id;
  std::string project;
  std::string owner;
  std::string display_name;
  bool live = false;  // the job has not ended
  int64_t ended_us = 0;
};

// A data set and who uses it.
struct DatasetUse {
  DatasetRecord dataset;
  std::vector<std::string> projects;
  int64_t live_jobs = 0, jobs = 0;
  int64_t last_used_us = 0;  // uploaded, submitted with, or the end of the last job that named it
};
// By hash, above `after`.
absl::StatusOr<std::vector<DatasetUse>> DatasetUses(Database& db, const std::string& after,
                                                    int limit);
absl::Status NoDataset(const std::string& sha256);
absl::StatusOr<DatasetUse> DatasetUseOf(Database& db, const std::string& sha256);
// Jobs that name it: how many, and the ids of at most `limit`, newest first, live ones before.
struct DatasetJobs {
  int64_t all = 0, live = 0;
  std::vector<std::string> ids;
};
// Of a project; empty: of all.
absl::StatusOr<DatasetJobs> JobsWithDataset(Database& db, const std::string& sha256,
                                            const std::string& project, int limit);
// Notes that it is used now; ABORTED when it is not there (any more).
absl::Status UseDataset(Database& db, const std::string& sha256, int64_t now_us);
absl::Status DeleteDataset(Database& db, const std::string& sha256);

// The hashes of all blobs that rows name: of data sets and artifacts, or of checkpoints.
absl::StatusOr<std::set<std::string>> NamedBlobs(Database& db, bool of_checkpoints);

// What a job delivered, and whose it is.
struct ArtifactUse {
  ArtifactRecord artifact;
  Holder holder;
  int64_t last_used_us = 0;
};
// By id, above `after`.
absl::StatusOr<std::vector<ArtifactUse>> ArtifactUses(Database& db, const std::string& after,
                                                      int limit);
absl::StatusOr<ArtifactUse> ArtifactUseOf(Database& db, const std::string& id);
absl::Status TouchArtifact(Database& db, const std::string& id, int64_t now_us);
// Returns its blobs that nothing names any more.
absl::StatusOr<std::vector<ArtifactFileRecord>> DeleteArtifact(Database& db,
                                                               const ArtifactRecord& artifact);
// Keys of the job_files rows that are an adapter's files.
inline constexpr std::string_view kAdapterFilePrefix = "job.adapter/";
// Whether an artifact names the blob.
absl::StatusOr<bool> IsArtifactsBlob(Database& db, const std::string& sha256);
// A job that has not ended and answers with this adapter; empty: none.
absl::StatusOr<std::string> LiveJobWithAdapter(Database& db, const std::string& artifact_id);
// The id of a live job whose model is the folder `path`; empty if there is none.
absl::StatusOr<std::string> LiveJobWithModel(Database& db, const std::string& path);
// Whether a data set or an artifact names it.
absl::StatusOr<bool> BlobInUse(Database& db, const std::string& sha256);

// Bytes of checkpoints that the server keeps, by job.
struct CheckpointUse {
  Holder holder;
  int64_t bytes = 0;
};
absl::StatusOr<std::vector<CheckpointUse>> CheckpointUses(Database& db, const std::string& after,
                                                          int limit);

// Nothing for an attempt, or a job, that is not known.
absl::StatusOr<std::optional<Holder>> HolderOfAttempt(Database& db, const std::string& uid);
absl::StatusOr<std::optional<Holder>> HolderOfJob(Database& db, const std::string& id);

// What was removed of a job; `kind` is a number of sft.v1.StoredKind.
struct Removal {
  std::string job_id;
  int kind = 0;
  int64_t time_us = 0;
  std::string who;
  int64_t bytes = 0;
  std::string node, path;  // a full model that the node removes
};
absl::Status PutRemoval(Database& db, const Removal& removal);
// The newest of the kind.
absl::StatusOr<std::optional<Removal>> RemovalOf(Database& db, const std::string& job_id, int kind);
// Paths of full models that a node shall remove, of removals since `since_us`.
absl::StatusOr<std::vector<std::string>> RemovedOnNode(Database& db, const std::string& node,
                                                       int64_t since_us);

// Bytes; 0: no limit.
struct Quota {
  std::string project;
  int64_t dataset_bytes = 0;
  int64_t artifact_bytes = 0;
};
absl::StatusOr<std::vector<Quota>> Quotas(Database& db);
absl::StatusOr<std::optional<Quota>> QuotaOf(Database& db, const std::string& project);
absl::Status PutQuota(Database& db, const Quota& quota);
// Of data sets that the project uses.
absl::StatusOr<int64_t> DatasetBytesOf(Database& db, const std::string& project);

}  // namespace sft::server::store
