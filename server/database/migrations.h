#pragma once

#include <span>
#include <string>

#include "server/database/sqlite.h"

namespace sft::server {

// One step of the schema. Steps are append-only: one that was released is never edited.
struct Migration {
  int version;  // user_version after it
  const char* sql;
};

std::span<const Migration> Migrations();

// Brings the database to the newest schema, each step in one transaction. FAILED_PRECONDITION when
// the file was written by a newer server: an older one would lose what it does not understand.
// Where there is something to lose, `backup` is a file that gets the database as it was before: one
// that is there already stays, as an earlier try may have made it.
absl::Status Migrate(Database& db, const std::string& backup);

}  // namespace sft::server
