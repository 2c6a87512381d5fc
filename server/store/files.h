#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// Rows of data sets and artifacts. As jobs.h.

namespace sft::server::store {

// A data set that is known already keeps its rows and gets a new last use.
absl::Status PutDataset(Database& db, const DatasetRecord& dataset);
absl::StatusOr<std::optional<DatasetRecord>> FindDataset(Database& db, const std::string& sha256);

// Committing an attempt's artifact again replaces it: the commit's answer was lost.
absl::StatusOr<ArtifactRecord> PutArtifact(Database& db, ArtifactRecord artifact);
absl::StatusOr<ArtifactRecord> GetArtifact(Database& db, const std::string& id);
// Newest first.
absl::StatusOr<std::vector<ArtifactRecord>> ArtifactsOfJob(Database& db, const std::string& job_id);

}  // namespace sft::server::store
