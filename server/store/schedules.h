#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/schedule.h"

// Rows that the scheduler goes by: schedules of jobs, limits of projects, promises, estimates. As
// jobs.h.

namespace sft::server::store {

absl::Status InsertSchedule(Database& db, const std::string& job_id, const ScheduleRecord& record);
// A job from before there were such rows has the defaults.
absl::StatusOr<ScheduleRecord> GetSchedule(Database& db, const std::string& job_id);
// PENDING jobs that are held.
absl::StatusOr<int64_t> CountHeldJobs(Database& db);
absl::Status SetHold(Database& db, const std::string& job_id, bool held, const std::string& reason);
absl::Status SetAfter(Database& db, const std::string& job_id,
                      const std::vector<std::string>& after);
absl::Status SetWarned(Database& db, const std::string& job_id);
absl::Status AddUsedTime(Database& db, const std::string& job_id, int64_t used_us);
// Ids of a sweep's jobs, oldest first.
absl::StatusOr<std::vector<std::string>> JobsOfSweep(Database& db, const std::string& sweep);

// All that have a row, by name.
absl::StatusOr<std::map<std::string, ProjectLimits>> ListLimits(Database& db);
absl::StatusOr<ProjectLimits> GetLimits(Database& db, const std::string& project);
absl::Status PutLimits(Database& db, const ProjectLimits& limits);
absl::StatusOr<int> CountPending(Database& db, const std::string& project);
// Jobs of each project that wait.
absl::StatusOr<std::map<std::string, int>> PendingByProject(Database& db);

// What waiting jobs were promised, by job. To put an empty one takes a promise away.
absl::StatusOr<std::map<std::string, Reservation>> AllPromises(Database& db);
absl::Status PutPromise(Database& db, const std::string& job_id, const Reservation& promise);

// What moved a waiting job: its last kMostWaitChanges changes.
inline constexpr int kMostWaitChanges = 50;
absl::Status AddWaitChange(Database& db, const WaitChange& change);
// Newest first.
absl::StatusOr<std::vector<WaitChange>> WaitChangesOf(Database& db, const std::string& job_id);

// The first estimate of a job stays; a repeat changes nothing.
absl::Status InsertEstimate(Database& db, const EstimateRecord& record);
absl::Status SetEstimateAt50(Database& db, const std::string& job_id, int64_t at_us,
                             int64_t end_us);
// What happened: the first start stays.
absl::Status SetBegun(Database& db, const std::string& job_id, int64_t now_us);
absl::Status SetEnded(Database& db, const std::string& job_id, int64_t now_us);
// Of jobs that started (ended: with success) last, newest first.
absl::StatusOr<std::vector<EstimateRecord>> LastBegun(Database& db, int limit);
absl::StatusOr<std::vector<EstimateRecord>> LastEnded(Database& db, int limit);

}  // namespace sft::server::store
