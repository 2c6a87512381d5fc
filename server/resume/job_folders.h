#pragma once

#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// Folders of jobs below the shared folder and on nodes: a path with a job's id in it leads into
// that job's folder, and is there for the job's project only.

namespace sft::server {

// The user or project that wants to read.
struct FolderReader {
  std::string owner;    // the principal; an admin reads all
  std::string project;  // that the job is for; empty: any in which the owner has a role
};

// Ids of jobs in the paths, each once.
std::vector<std::string> JobsInPaths(const std::vector<std::string>& paths);
// Those of them whose folders may be read. What is not there and what is another project's are the
// same.
absl::StatusOr<std::vector<std::string>> ReadableJobs(Database& db, const FolderReader& reader,
                                                      const std::vector<std::string>& jobs);
// Whether none of the paths leads into a folder that may not be read.
absl::StatusOr<bool> MayRead(Database& db, const FolderReader& reader,
                             const std::vector<std::string>& paths);

}  // namespace sft::server
