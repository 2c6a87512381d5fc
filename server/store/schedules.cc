#include "server/store/schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "server/store/states.h"

namespace sft::server::store {
namespace {

#define SFT_SCHEDULE_COLUMNS                                                              \
  "s.job_id, s.after_jobs, s.held, s.hold_reason, s.time_limit_us, s.warn_before_us, "    \
  "s.deadline_us, s.exclusive, s.preemptible, s.planned_us, s.planned_steps, s.used_us, " \
  "s.warned, s.sweep, s.sweep_limit, s.run_group"
#define SFT_LIMIT_COLUMNS \
  "project, share, max_gpus, max_running, max_pending, max_priority, usage_us, usage_at_us"
#define SFT_ESTIMATE_COLUMNS                                                             \
  "job_id, project, gpu_type, gpus, submitted_us, start_us, end_us, at50_us, end50_us, " \
  "begun_us, ended_us"

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> ids;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    ids.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return ids;
}

std::string Join(const std::vector<std::string>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

ScheduleRecord ReadSchedule(const Statement& row) {
  ScheduleRecord record;
  record.after = Split(row.Text(1));
  record.held = row.Bool(2);
  record.hold_reason = row.Text(3);
  record.time_limit_us = row.Int(4);
  record.warn_before_us = row.Int(5);
  record.deadline_us = row.Int(6);
  record.exclusive = row.Bool(7);
  record.preemptible = row.Bool(8);
  record.planned_us = row.Int(9);
  record.planned_steps = row.Int(10);
  record.used_us = row.Int(11);
  record.warned = row.Bool(12);
  record.sweep = row.Text(13);
  record.sweep_limit = static_cast<int>(row.Int(14));
  record.group = row.Text(15);
  return record;
}

ProjectLimits ReadLimits(const Statement& row) {
  ProjectLimits limits;
  limits.project = row.Text(0);
  limits.share = row.Real(1);
  limits.max_gpus = static_cast<int>(row.Int(2));
  limits.max_running = static_cast<int>(row.Int(3));
  limits.max_pending = static_cast<int>(row.Int(4));
  limits.max_priority = static_cast<int>(row.Int(5));
  limits.usage_us = row.Real(6);
  limits.usage_at_us = row.Int(7);
  return limits;
}

absl::StatusOr<std::vector<EstimateRecord>> ReadEstimates(Statement& row) {
  std::vector<EstimateRecord> estimates;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool more, row.Step());
    if (!more) return estimates;
    EstimateRecord& record = estimates.emplace_back();
    record.job_id = row.Text(0);
    record.project = row.Text(1);
    record.gpu_type = row.Text(2);
    record.gpus = static_cast<int>(row.Int(3));
    record.submitted_us = row.Int(4);
    record.start_us = row.Int(5);
    record.end_us = row.Int(6);
    record.at50_us = row.Int(7);
    record.end50_us = row.Int(8);
    record.begun_us = row.Int(9);
    record.ended_us = row.Int(10);
  }
}

}  // namespace

absl::Status InsertSchedule(Database& db, const std::string& job_id, const ScheduleRecord& r) {
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare("INSERT INTO job_schedules (job_id, after_jobs, held, hold_reason, "
                 "time_limit_us, warn_before_us, deadline_us, exclusive, preemptible, planned_us, "
                 "planned_steps, sweep, sweep_limit, run_group) VALUES (?, ?, ?, ?, ?, ?, ?, ?, "
                 "?, ?, ?, ?, ?, ?)"));
  insert.Bind(job_id).Bind(Join(r.after)).Bind(r.held).Bind(r.hold_reason);
  insert.Bind(r.time_limit_us).Bind(r.warn_before_us).Bind(r.deadline_us).Bind(r.exclusive);
  insert.Bind(r.preemptible).Bind(r.planned_us).Bind(r.planned_steps).Bind(r.sweep);
  return insert.Bind(r.sweep_limit).Bind(r.group).Run();
}

absl::StatusOr<ScheduleRecord> GetSchedule(Database& db, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT " SFT_SCHEDULE_COLUMNS
                                                 " FROM job_schedules s WHERE s.job_id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(job_id).Step());
  return row ? ReadSchedule(get) : ScheduleRecord();
}

absl::StatusOr<int64_t> CountHeldJobs(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement count,
                       db.Prepare("SELECT count(*) FROM jobs j JOIN job_schedules s ON s.job_id = "
                                  "j.id WHERE j.state " SFT_IS_PENDING " AND s.held = 1"));
  SFT_RETURN_IF_ERROR(count.Step().status());
  return count.Int(0);
}

absl::Status SetHold(Database& db, const std::string& job_id, bool held,
                     const std::string& reason) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE job_schedules SET held = ?, hold_reason = ? WHERE job_id = ?"));
  return update.Bind(held).Bind(reason).Bind(job_id).Run();
}

absl::Status SetAfter(Database& db, const std::string& job_id,
                      const std::vector<std::string>& after) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE job_schedules SET after_jobs = ? WHERE job_id = ?"));
  return update.Bind(Join(after)).Bind(job_id).Run();
}

absl::Status SetWarned(Database& db, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE job_schedules SET warned = 1 WHERE job_id = ?"));
  return update.Bind(job_id).Run();
}

absl::Status AddUsedTime(Database& db, const std::string& job_id, int64_t used_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE job_schedules SET used_us = used_us + ? WHERE job_id = ?"));
  return update.Bind(used_us).Bind(job_id).Run();
}

absl::StatusOr<std::vector<std::string>> JobsOfSweep(Database& db, const std::string& sweep) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT j.id FROM job_schedules s JOIN jobs j ON j.id = s.job_id "
                                  "WHERE s.sweep = ? AND s.sweep != '' ORDER BY j.sequence"));
  list.Bind(sweep);
  std::vector<std::string> ids;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return ids;
    ids.push_back(list.Text(0));
  }
}

absl::StatusOr<std::map<std::string, ProjectLimits>> ListLimits(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_LIMIT_COLUMNS " FROM project_limits"));
  std::map<std::string, ProjectLimits> all;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return all;
    ProjectLimits limits = ReadLimits(list);
    all.emplace(limits.project, limits);
  }
}

absl::StatusOr<ProjectLimits> GetLimits(Database& db, const std::string& project) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT " SFT_LIMIT_COLUMNS
                                                 " FROM project_limits WHERE project = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(project).Step());
  if (row) return ReadLimits(get);
  ProjectLimits limits;
  limits.project = project;
  return limits;
}

absl::Status PutLimits(Database& db, const ProjectLimits& limits) {
  SFT_ASSIGN_OR_RETURN(Statement put,
                       db.Prepare("INSERT OR REPLACE INTO project_limits (" SFT_LIMIT_COLUMNS
                                  ") VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
  put.Bind(limits.project).Bind(limits.share).Bind(limits.max_gpus).Bind(limits.max_running);
  put.Bind(limits.max_pending).Bind(limits.max_priority).Bind(limits.usage_us);
  return put.Bind(limits.usage_at_us).Run();
}

absl::StatusOr<int> CountPending(Database& db, const std::string& project) {
  SFT_ASSIGN_OR_RETURN(Statement count,
                       db.Prepare("SELECT count(*) FROM jobs WHERE state " SFT_IS_PENDING " AND "
                                  "project = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, count.Bind(project).Step());
  return row ? static_cast<int>(count.Int(0)) : 0;
}

absl::StatusOr<std::map<std::string, int>> PendingByProject(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement count, db.Prepare("SELECT project, count(*) FROM jobs WHERE "
                                                   "state " SFT_IS_PENDING " GROUP BY project"));
  std::map<std::string, int> pending;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, count.Step());
    if (!row) return pending;
    pending[count.Text(0)] = static_cast<int>(count.Int(1));
  }
}

absl::StatusOr<std::map<std::string, Reservation>> AllPromises(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement row, db.Prepare("SELECT job_id, start_us, nodes FROM promises"));
  std::map<std::string, Reservation> promises;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool more, row.Step());
    if (!more) return promises;
    promises[row.Text(0)] = {row.Int(1), Split(row.Text(2))};
  }
}

absl::Status PutPromise(Database& db, const std::string& job_id, const Reservation& promise) {
  if (promise.empty()) {
    SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM promises WHERE job_id = ?"));
    return remove.Bind(job_id).Run();
  }
  SFT_ASSIGN_OR_RETURN(Statement put, db.Prepare("INSERT OR REPLACE INTO promises (job_id, "
                                                 "start_us, nodes) VALUES (?, ?, ?)"));
  return put.Bind(job_id).Bind(promise.start_us).Bind(Join(promise.nodes)).Run();
}

absl::Status AddWaitChange(Database& db, const WaitChange& change) {
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare("INSERT INTO wait_changes (job_id, sequence, time_us, place_before, place, "
                 "start_before_us, start_us, promised_before_us, promised_us, cause) SELECT ?1, "
                 "coalesce(max(sequence), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 FROM wait_changes "
                 "WHERE job_id = ?1"));
  insert.Bind(change.job).Bind(change.time_us);
  insert.Bind(change.before.place).Bind(change.after.place);
  insert.Bind(change.before.start_us).Bind(change.after.start_us);
  insert.Bind(change.before.promised_us).Bind(change.after.promised_us).Bind(change.cause);
  SFT_RETURN_IF_ERROR(insert.Run());
  SFT_ASSIGN_OR_RETURN(
      Statement remove,
      db.Prepare("DELETE FROM wait_changes WHERE job_id = ?1 AND sequence <= (SELECT max(sequence) "
                 "FROM wait_changes WHERE job_id = ?1) - ?2"));
  return remove.Bind(change.job).Bind(kMostWaitChanges).Run();
}

absl::StatusOr<std::vector<WaitChange>> WaitChangesOf(Database& db, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT time_us, place_before, place, start_before_us, start_us, "
                 "promised_before_us, promised_us, cause FROM wait_changes WHERE job_id = ? ORDER "
                 "BY sequence DESC LIMIT ?"));
  list.Bind(job_id).Bind(kMostWaitChanges);
  std::vector<WaitChange> changes;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return changes;
    WaitChange& change = changes.emplace_back();
    change.job = job_id;
    change.time_us = list.Int(0);
    change.before = {static_cast<int>(list.Int(1)), list.Int(3), list.Int(5)};
    change.after = {static_cast<int>(list.Int(2)), list.Int(4), list.Int(6)};
    change.cause = list.Text(7);
  }
}

absl::Status InsertEstimate(Database& db, const EstimateRecord& r) {
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare("INSERT OR IGNORE INTO estimates (job_id, project, gpu_type, gpus, submitted_us, "
                 "start_us, end_us) VALUES (?, ?, ?, ?, ?, ?, ?)"));
  insert.Bind(r.job_id).Bind(r.project).Bind(r.gpu_type).Bind(r.gpus).Bind(r.submitted_us);
  return insert.Bind(r.start_us).Bind(r.end_us).Run();
}

absl::Status SetEstimateAt50(Database& db, const std::string& job_id, int64_t at_us,
                             int64_t end_us) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE estimates SET at50_us = ?, end50_us = ? WHERE job_id = ? "
                                  "AND at50_us = 0"));
  return update.Bind(at_us).Bind(end_us).Bind(job_id).Run();
}

absl::Status SetBegun(Database& db, const std::string& job_id, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE estimates SET begun_us = ? WHERE job_id = ? AND begun_us = 0"));
  return update.Bind(now_us).Bind(job_id).Run();
}

absl::Status SetEnded(Database& db, const std::string& job_id, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE estimates SET ended_us = ? WHERE job_id = ?"));
  return update.Bind(now_us).Bind(job_id).Run();
}

absl::StatusOr<std::vector<EstimateRecord>> LastBegun(Database& db, int limit) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_ESTIMATE_COLUMNS
                                  " FROM estimates WHERE begun_us > 0 ORDER BY begun_us DESC "
                                  "LIMIT ?"));
  return ReadEstimates(list.Bind(limit));
}

absl::StatusOr<std::vector<EstimateRecord>> LastEnded(Database& db, int limit) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_ESTIMATE_COLUMNS
                                  " FROM estimates WHERE ended_us > 0 ORDER BY ended_us DESC "
                                  "LIMIT ?"));
  return ReadEstimates(list.Bind(limit));
}

}  // namespace sft::server::store
