#pragma once

#include <string>
#include <vector>

#include "server/gangs/gang_life.h"
#include "server/sched/decide.h"
#include "server/scheduling/live_jobs.h"

// Converts jobs and projects to the scheduler's view, and carries out its preemptions in the
// database.

namespace sft::server {

// Upper bound of a job without a bound of its own, as a multiple of its expected run time.
inline constexpr double kBoundFactor = 1.5;

// Adds running jobs, and the limits and usage of projects. Inside a transaction of the store.
absl::Status AddRunning(Database& db, const std::vector<LiveJob>& live, int64_t now_us,
                        sched::Snapshot& snapshot);

// Converts a waiting job. A model that is a path is no constraint: the node checks it.
sched::PendingJob ToPending(const JobRecord& job);
bool IsModelPath(const std::string& model);
// Notes the model of a job, and whether a node may download it.
void NameModel(const std::string& model, sched::PendingJob& pending);

// Stops the preempted job. Inside a transaction of the store.
absl::Status Preempt(Database& db, const sched::Preemption& preemption, int64_t now_us,
                     ChangedJobs& changed);

}  // namespace sft::server
