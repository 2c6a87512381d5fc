#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/database/sqlite.h"

// Which steps of a job's checkpoints other jobs use. As jobs.h.

namespace sft::server::store {

// The steps of the job from which jobs go on that have not ended and have committed no checkpoint
// of their own, or with which they answer, each once; 0 among them: one may take any.
absl::StatusOr<std::vector<int64_t>> StepsResumedByLiveJobs(Database& db,
                                                            const std::string& job_id);

}  // namespace sft::server::store
