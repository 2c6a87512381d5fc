#pragma once

#include <string>
#include <vector>

#include "server/gangs/gang_life.h"
#include "server/sched/decide.h"
#include "server/scheduling/live_jobs.h"

// Jobs and projects as the scheduler sees them, and its preemptions in the database.

namespace sft::server {

// A job whose run time nobody bounds counts as running so much longer than expected at most.
inline constexpr double kBoundFactor = 1.5;

// Adds what runs, and what projects may use and have used. Inside a transaction of the store.
absl::Status AddRunning(Database& db, const std::vector<LiveJob>& live, int64_t now_us,
                        sched::Snapshot& snapshot);

// A waiting job. A model that is a path is no constraint: the node checks it.
sched::PendingJob ToPending(const JobRecord& job);
bool IsModelPath(const std::string& model);

// Stops what is to make room for another. Inside a transaction of the store.
absl::Status Preempt(Database& db, const sched::Preemption& preemption, int64_t now_us,
                     ChangedJobs& changed);

}  // namespace sft::server
