#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"

namespace sft::server {

// Restores a backup into a new data folder: checks the copy against its manifest, page by page, and
// its schema against this server's, and takes the files that it names from the backup or from the
// data folder `files_from` (empty: none), hard-linked where possible. Logs, curves and keys in
// `files_from`, which are newer, go before those of the backup. The restored database is of a new
// generation. Returns the text for the operator's terminal. ALREADY_EXISTS when `data_dir` has a
// database.
absl::StatusOr<std::string> RestoreBackup(const std::string& backup, const std::string& data_dir,
                                          const std::string& files_from, Clock& clock);

// Makes the database in `path`, a single file, one of a new generation, above `above`: brings it to
// this server's schema (what it was before is kept as `kept_as`.schema-N), raises its generation
// (store::RaiseGeneration), checks every page and syncs it. Returns the generation.
absl::StatusOr<int64_t> RaiseGenerationOf(const std::string& path, const std::string& kept_as,
                                          Clock& clock, int64_t above);

}  // namespace sft::server
