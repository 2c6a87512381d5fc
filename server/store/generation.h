#pragma once

#include <cstdint>
#include <string>

#include "common/base/generation.h"
#include "server/database/sqlite.h"

// Which of the servers that have had a fleet's data this database is of. As jobs.h.

namespace sft::server::store {

// The one row of it: kFirstGeneration of a database that was never restored or taken over.
struct GenerationRecord {
  int64_t number = kFirstGeneration;
  // The higher generation of the server that has taken this one's place, and its address; 0: none.
  int64_t replaced_by = 0;
  std::string replaced_at;
};

// DATA_LOSS for numbers that are none.
absl::StatusOr<GenerationRecord> GetGeneration(Database& db);
// Makes it the database of another server: its number goes up, above the one that it had, if that
// is one, and above `above`. It is at least the time in seconds, so that two restores of one backup
// differ, and one of an old backup is above all that came after it. Returns the new number.
// OUT_OF_RANGE beyond kLastGeneration.
absl::StatusOr<int64_t> RaiseGeneration(Database& db, int64_t now_us, int64_t above = 0);
// Notes for good that another server has taken this one's place.
absl::Status SetReplaced(Database& db, int64_t generation, const std::string& address);

}  // namespace sft::server::store
