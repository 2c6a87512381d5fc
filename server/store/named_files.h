#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// Rows of files: data sets by ids and names of their users. As jobs.h.

namespace sft::server::store {

// Fills in sequence.
absl::Status InsertFile(Database& db, FileRecord& file);
// The NOT_FOUND of a file that is not there, or not to be seen.
absl::Status NoFile(const std::string& id);
absl::StatusOr<FileRecord> GetFile(Database& db, const std::string& id);
// The newest of the same owner, project, data set, name and purpose, made since then.
absl::StatusOr<std::optional<FileRecord>> FindSameFile(Database& db, const FileRecord& file,
                                                       int64_t since_us);

// Which files a list has.
struct FileFilter {
  std::string project;  // empty: all
  std::string purpose;  // empty: any
  // Projects whose files may be seen; absent: all.
  std::optional<std::vector<std::string>> visible;
  bool oldest_first = false;
  int64_t after = 0;  // the sequence behind which it begins; 0: with the first
  int limit = 50;
};
absl::StatusOr<std::vector<FileRecord>> ListFiles(Database& db, const FileFilter& filter);

absl::Status DeleteFile(Database& db, const std::string& id);
// How many files of a project a data set has.
absl::StatusOr<int64_t> CountFilesOf(Database& db, const std::string& project,
                                     const std::string& sha256);

}  // namespace sft::server::store
