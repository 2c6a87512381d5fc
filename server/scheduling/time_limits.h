#pragma once

#include <cstdint>

#include "server/gangs/gang_life.h"
#include "server/sched/preempt.h"
#include "server/scheduling/live_jobs.h"

// scheduling.time_limit: how long an attempt may still take, and what is done at its end.

namespace sft::server {

// What a job may take beyond its time limit: it writes a checkpoint and ends.
inline constexpr int64_t kEndingUs = sched::kStopUs;

// How long the attempt may take as a whole, in microseconds; only of a job with a limit.
int64_t LimitLeft(const ScheduleRecord& schedule);
// Its end, as it is expected and shown; Ages decide.
int64_t LimitEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule);

// Whether a running job's time limit is over, or near and not warned of. `age_us`: since its
// attempt was placed (Ages).
bool IsAtTimeLimit(const LiveJob& live, int64_t age_us);
// Warns the job, or ends it. Inside a transaction of the store.
absl::Status KeepTimeLimit(Database& db, const LiveJob& live, int64_t age_us, int64_t now_us,
                           ChangedJobs& changed);

}  // namespace sft::server
