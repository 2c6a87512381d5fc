#pragma once

#include <cstdint>
#include <string>

#include "server/database/sqlite.h"

// Which of the servers that have had a fleet's data this database is of. As jobs.h.

namespace sft::server::store {

// Of a database that was never restored or taken over.
inline constexpr int64_t kFirstGeneration = 1;

// The one row of it.
struct GenerationRecord {
  int64_t number = kFirstGeneration;
  // The higher generation of the server that has taken this one's place, and its address; 0: none.
  int64_t replaced_by = 0;
  std::string replaced_at;
};

absl::StatusOr<GenerationRecord> GetGeneration(Database& db);
// Makes it the database of another server: its number goes up, above the one that it had and above
// `above`. It is at least the time in seconds, so that two restores of one backup differ, and one
// of an old backup is above all that came after it. Returns the new number.
absl::StatusOr<int64_t> RaiseGeneration(Database& db, int64_t now_us, int64_t above = 0);
// Notes for good that another server has taken this one's place.
absl::Status SetReplaced(Database& db, int64_t generation, const std::string& address);

}  // namespace sft::server::store
