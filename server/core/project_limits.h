#pragma once

#include <string>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// A project's limits on new jobs. They are checked in the transaction that stores the job, so that
// concurrent calls cannot pass a limit together.

namespace sft::server {

// Why the job is refused; empty: it is allowed.
std::string PriorityProblem(const ProjectLimits& limits, const JobRecord& job);
std::string SizeProblem(const ProjectLimits& limits, const JobRecord& job);
// RESOURCE_EXHAUSTED when `more` new jobs would exceed the number that may be pending.
absl::Status CheckPending(Database& db, const ProjectLimits& limits, int more);

// Checks all limits for a job about to be stored together with `more` jobs; 0 means that pending
// ones were counted before. FAILED_PRECONDITION for a size or priority that is not allowed.
absl::Status CheckLimits(Database& db, const JobRecord& job, int more);

}  // namespace sft::server
