#pragma once

#include <string>

#include "server/database/sqlite.h"

// Which project something belongs to, and which projects hold which data set. A blob is stored
// once, by its content; a project may name it only after it has sent all of it, so that knowing a
// hash is worth nothing. As jobs.h.

namespace sft::server::store {

absl::Status PutDatasetOwner(Database& db, const std::string& sha256, const std::string& project,
                             const std::string& owner, const std::string& display_name,
                             int64_t now_us);
absl::StatusOr<bool> OwnsDataset(Database& db, const std::string& project,
                                 const std::string& sha256);
// The project has it no more; says whether another one has.
absl::StatusOr<bool> DropDatasetOwner(Database& db, const std::string& project,
                                      const std::string& sha256);
// Whether a job with an attempt on the node needs the blob: a data set, or a file of the checkpoint
// that it goes on from.
absl::StatusOr<bool> NodeNeedsBlob(Database& db, const std::string& node,
                                   const std::string& sha256);

// NOT_FOUND, with the text that those get who may not see it.
// Whether an attempt that is on the node is of a job with this model ("org/name").
absl::StatusOr<bool> NodeNeedsModel(Database& db, const std::string& node,
                                    const std::string& model);
absl::StatusOr<std::string> ProjectOfJob(Database& db, const std::string& id);
absl::StatusOr<std::string> ProjectOfArtifact(Database& db, const std::string& id);
absl::Status NoArtifact(const std::string& id);

}  // namespace sft::server::store
