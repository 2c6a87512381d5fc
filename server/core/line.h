#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/core/gang_life.h"
#include "server/core/outlooks.h"
#include "server/core/scene.h"
#include "server/sched/decide.h"
#include "server/state/records.h"
#include "server/store/sqlite.h"

// What the scheduler sees of jobs and projects, and what becomes of its decision in the database.
// Functions with a database run inside one transaction of the store.

namespace sft::server {

// A job whose run time nobody bounds counts as running so much longer than expected at most.
inline constexpr double kBoundFactor = 1.5;

// When an attempt will end, by its measured steps, else by the plan; 0: not known. With `measured`
// whether steps say so.
int64_t ExpectedEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule, int64_t now_us,
                    bool* measured = nullptr);

absl::StatusOr<std::vector<LiveJob>> LoadLive(Database& db);

// What runs, and what projects may use and have used.
absl::Status AddWork(Database& db, const std::vector<LiveJob>& live, int64_t now_us,
                     sched::Snapshot& snapshot);
// Fills in what a waiting job asks of the scheduler.
void AddSchedule(const JobRecord& job, sched::PendingJob& pending);

// The jobs that a job waits for.
struct Dependencies {
  std::vector<std::string> left;  // that have not ended
  bool have_ended = false;        // some of them
  std::string failed;             // one that did not succeed
  JobState failed_state = JobState::kFailed;
};
absl::StatusOr<Dependencies> LookAtOthers(Database& db, const ScheduleRecord& schedule);
// Strikes those off that have succeeded; a job after one that did not is ended. Of a job that does
// not wait any more nothing is changed.
absl::Status Release(Database& db, const std::string& job_id, int64_t now_us, ChangedJobs& changed);
// Ends a job that was to go on from another's checkpoint, and must not quietly begin at step 0.
absl::Status EndWithoutCheckpoint(Database& db, JobRecord job,
                                  const std::vector<std::string>& notes, int64_t now_us,
                                  ChangedJobs& changed);
// Why a job may not be placed now; empty: it may.
std::string WhyBlocked(const JobRecord& job);

// Whether a running job's time limit is over, or near and not warned of. `age_us`: since its
// attempt was placed (Ages).
bool IsAtTimeLimit(const LiveJob& live, int64_t age_us);
// Warns it, or ends it.
absl::Status KeepTimeLimit(Database& db, const LiveJob& live, int64_t age_us, int64_t now_us,
                           ChangedJobs& changed);

// Stops what shall make room for another.
absl::Status Preempt(Database& db, const sched::Preemption& preemption, int64_t now_us,
                     ChangedJobs& changed);

// What is expected of each open job.
Outlooks::Map Expect(const sched::Decision& decision, const std::vector<LiveJob>& live,
                     int64_t now_us);
// Of waiting jobs and those that start now, as it is stored.
std::vector<EstimateRecord> FirstEstimates(const sched::Snapshot& snapshot,
                                           const sched::Decision& decision, int64_t now_us);
// What steps say of a running job: when it began to make them, and its end after 50 of them.
bool HasPaceToStore(const LiveJob& live);
absl::Status StorePace(Database& db, const LiveJob& live, int64_t now_us);

}  // namespace sft::server
