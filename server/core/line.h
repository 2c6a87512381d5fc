#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/core/gang_life.h"
#include "server/core/outlooks.h"
#include "server/sched/decide.h"
#include "server/state/records.h"
#include "server/store/sqlite.h"

// What the scheduler sees of jobs and projects, and what becomes of its decision in the database.
// Every function runs inside one transaction of the store.

namespace sft::server {

using Schedules = std::map<std::string, ScheduleRecord>;  // by job

// A job whose run time nobody bounds counts as running so much longer than expected at most.
inline constexpr double kBoundFactor = 1.5;

// When an attempt will end, by its measured steps, else by the plan; 0: not known. With `measured`
// whether steps say so.
int64_t ExpectedEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule, int64_t now_us,
                    bool* measured = nullptr);

// A job with an attempt that is not over.
struct LiveJob {
  JobRecord job;  // without the large texts
  AttemptRecord attempt;
  ScheduleRecord schedule;
};
absl::StatusOr<std::vector<LiveJob>> LoadLive(Database& db, const Schedules& schedules);

// What runs, and what projects may use and have used.
absl::Status AddWork(Database& db, const std::vector<LiveJob>& live, int64_t now_us,
                     sched::Snapshot& snapshot);
// Fills in what a waiting job asks of the scheduler.
void AddSchedule(const JobRecord& job, const ScheduleRecord& schedule, sched::PendingJob& pending);

// Looks at the jobs that `job` waits for. True: one of them did not succeed, and the job was ended.
// Those that succeeded are struck off `schedule`.
absl::StatusOr<bool> EndIfImpossible(Database& db, JobRecord job, ScheduleRecord& schedule,
                                     int64_t now_us, ChangedJobs& changed);
// Why a job may not be placed now; empty: it may.
std::string WhyBlocked(const JobRecord& job, const ScheduleRecord& schedule);

// Warns running jobs whose time limit is near, and ends those at it.
absl::Status KeepTimeLimits(Database& db, const std::vector<LiveJob>& live, int64_t now_us,
                            ChangedJobs& changed);

// Stops what shall make room for others.
absl::Status Preempt(Database& db, const std::vector<sched::Preemption>& preemptions,
                     int64_t now_us, ChangedJobs& changed);

// Stores first estimates and the ones after 50 steps, and says what is expected of each open job.
absl::StatusOr<Outlooks::Map> KeepEstimates(Database& db, const sched::Snapshot& snapshot,
                                            const sched::Decision& decision,
                                            const std::vector<LiveJob>& live, int64_t now_us);

}  // namespace sft::server
