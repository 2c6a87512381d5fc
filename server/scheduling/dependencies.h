#pragma once

#include <string>
#include <vector>

#include "server/gangs/gang_life.h"
#include "server/store/store.h"

// Dependencies between jobs (scheduling.after), and the conditions that keep a waiting job from
// being placed. Functions with a database run inside one transaction of the store.

namespace sft::server {

// The state of the jobs that a job waits for.
struct Dependencies {
  std::vector<std::string> left;  // that have not ended
  bool have_ended = false;        // some of them have
  std::string failed;             // one that did not succeed
  JobState failed_state = JobState::kFailed;
};
absl::StatusOr<Dependencies> ReadDependencies(Database& db, const ScheduleRecord& schedule);
// Removes dependencies that have succeeded, and ends a job whose dependency has not. A job that no
// longer waits is left as it is.
absl::Status SettleDependencies(Database& db, const std::string& job_id, int64_t now_us,
                                ChangedJobs& changed);
// Ends a job that was to continue from another's checkpoint and must not silently begin at step 0.
absl::Status EndWithoutCheckpoint(Database& db, JobRecord job,
                                  const std::vector<std::string>& notes, int64_t now_us,
                                  ChangedJobs& changed);
// Ends a waiting job whose stored settings cannot be read any more; false where they can.
absl::StatusOr<bool> EndIfSettingsAreLost(Database& db, const std::string& job_id, int64_t now_us,
                                          ChangedJobs& changed);
// Why a job may not be placed now: held, or waiting for others; empty: it may.
std::string WhyBlocked(const JobRecord& job);

}  // namespace sft::server
