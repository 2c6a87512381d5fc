#pragma once

#include <cstdint>
#include <vector>

#include "server/core/outlooks.h"
#include "server/sched/decide.h"
#include "server/scheduling/live_jobs.h"
#include "server/state/records.h"

// Expected starts and ends of jobs: those shown, and those stored for comparison with the actual
// times.

namespace sft::server {

// Planned time of a job from a step to its end; 0: not known.
int64_t PlannedLeft(const ScheduleRecord& schedule, int64_t step);

// Expected end of an attempt, by its measured steps or else by the plan; 0: not known. `measured`
// tells which.
int64_t ExpectedEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule, int64_t now_us,
                    bool* measured = nullptr);

// The outlook of each job that has not ended.
Outlooks::Map ExpectJobs(const sched::Decision& decision, const std::vector<LiveJob>& live,
                         int64_t now_us);
// The first estimates to store for waiting jobs and for those that start now.
std::vector<EstimateRecord> FirstEstimates(const sched::Snapshot& snapshot,
                                           const sched::Decision& decision, int64_t now_us);
// The pace of a running job: the time of its first steps, and its expected end after 50 of them.
// StorePace runs inside a transaction of the store.
bool HasPaceToStore(const LiveJob& live);
absl::Status StorePace(Database& db, const LiveJob& live, int64_t now_us);

}  // namespace sft::server
