#pragma once

#include <string>

#include "common/base/status.h"

namespace sft::server {

// What a look at a database file finds, also while a server uses it.
struct DatabaseState {
  int64_t schema = 0;
  int64_t bytes = 0;
};
// Opens it for reading and checks that its pages fit together (PRAGMA quick_check). NOT_FOUND when
// there is none; DATA_LOSS names what is broken.
absl::StatusOr<DatabaseState> CheckDatabaseFile(const std::string& path);

}  // namespace sft::server
