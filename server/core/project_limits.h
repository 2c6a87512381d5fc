#pragma once

#include <string>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// What a project may not do with a new job. The transaction that stores the job asks, so that calls
// side by side cannot pass a limit together.

namespace sft::server {

// In words; empty: the job is allowed.
std::string PriorityProblem(const ProjectLimits& limits, const JobRecord& job);
std::string SizeProblem(const ProjectLimits& limits, const JobRecord& job);
// RESOURCE_EXHAUSTED where `more` jobs would be more than may wait.
absl::Status CheckPending(Database& db, const ProjectLimits& limits, int more);

// All of it for a job that is about to be stored, `more` jobs with it; 0: those that wait were
// counted before. FAILED_PRECONDITION for what its size or priority forbids.
absl::Status CheckLimits(Database& db, const JobRecord& job, int more);

}  // namespace sft::server
