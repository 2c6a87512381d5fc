#pragma once

#include <string>

#include "common/base/status.h"
#include "server/database/database_mark.h"

namespace sft::server {

// What a look at a database file finds, also while a server uses it.
struct DatabaseState {
  int64_t schema = 0;
  int64_t bytes = 0;
  DatabaseMark mark = DatabaseMark::kNone;
};
enum class CheckDepth {
  kPages,  // every page and row, in about the time that reading the file takes (PRAGMA quick_check)
  kAll     // and that every index has every row (PRAGMA integrity_check)
};
// Opens it for reading and looks. NOT_FOUND when there is none; DATA_LOSS names what is broken.
absl::StatusOr<DatabaseState> CheckDatabaseFile(const std::string& path, CheckDepth depth);

// What a server does before it opens its database, if there is one: looks at its pages, at all of
// it where it was not closed in order (of a large one that lies where it was: at its pages).
// DATA_LOSS for what is damaged; FAILED_PRECONDITION for a
// copy of one that was in use, unless `accept_copy`.
absl::Status CheckBeforeStart(const std::string& path, bool accept_copy);

}  // namespace sft::server
