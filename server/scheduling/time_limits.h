#pragma once

#include <cstdint>

#include "server/gangs/gang_life.h"
#include "server/sched/preempt.h"
#include "server/scheduling/live_jobs.h"

// scheduling.time_limit: the time that an attempt has left, and what happens when it is over.

namespace sft::server {

// Time that a job may take beyond its limit to write a checkpoint and end.
inline constexpr int64_t kEndingUs = sched::kStopUs;

// The time allowed for the whole attempt, in microseconds; only for a job with a limit.
int64_t LimitLeft(const ScheduleRecord& schedule);
// Its end as shown to users; the decision to end it is made by Ages.
int64_t LimitEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule);

// True when a running job's time limit is over, or is near and no warning was given. `age_us`:
// since its attempt was placed (Ages).
bool IsAtTimeLimit(const LiveJob& live, int64_t age_us);
// Warns the job, or ends it. Inside a transaction of the store.
absl::Status KeepTimeLimit(Database& db, const LiveJob& live, int64_t age_us, int64_t now_us,
                           ChangedJobs& changed);

}  // namespace sft::server
