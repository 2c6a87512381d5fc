#pragma once

#include <string>

#include "server/database/sqlite.h"

namespace sft::server::store {

// Calls that a job's judges got, by the grader's name.
absl::StatusOr<int64_t> JudgeCalls(Database& db, const std::string& job_id,
                                   const std::string& grader);
// Counts one more call; of one that was not made after all, one less (`calls` -1).
absl::Status AddJudgeCalls(Database& db, const std::string& job_id, const std::string& grader,
                           int calls);

}  // namespace sft::server::store
