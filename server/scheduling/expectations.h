#pragma once

#include <cstdint>
#include <vector>

#include "server/core/outlooks.h"
#include "server/sched/decide.h"
#include "server/scheduling/live_jobs.h"

// When jobs are expected to start and to end: what is shown, and what is stored of it to compare
// with what came.

namespace sft::server {

// What a job is planned to take from a step to its end; 0: not known.
int64_t PlannedLeft(const ScheduleRecord& schedule, int64_t step);

// When an attempt will end, by its measured steps, else by the plan; 0: not known. `measured` says
// whether steps say so.
int64_t ExpectedEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule, int64_t now_us,
                    bool* measured = nullptr);

// The outlook of each open job.
Outlooks::Map ExpectJobs(const sched::Decision& decision, const std::vector<LiveJob>& live,
                         int64_t now_us);
// The first estimate of each waiting job and of those that start now, as it is stored.
std::vector<EstimateRecord> FirstEstimates(const sched::Snapshot& snapshot,
                                           const sched::Decision& decision, int64_t now_us);
// The pace of a running job: when it made its first steps, and its expected end after 50 of them.
// StorePace runs inside a transaction of the store.
bool HasPaceToStore(const LiveJob& live);
absl::Status StorePace(Database& db, const LiveJob& live, int64_t now_us);

}  // namespace sft::server
