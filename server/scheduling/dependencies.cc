#include "server/scheduling/dependencies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "server/store/jobs.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

absl::Status EndWaiting(Database& db, JobRecord& job, int64_t now_us) {
  SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, JobState::kFailed, job.verdict.message, now_us));
  return store::AddEvent(
      db, job.id,
      {0, now_us, "verdict", job.verdict.code + ": " + job.verdict.message, job.attempt});
}

}  // namespace

absl::StatusOr<Dependencies> ReadDependencies(Database& db, const ScheduleRecord& schedule) {
  Dependencies others;
  for (const std::string& id : schedule.after) {
    SFT_ASSIGN_OR_RETURN(const JobState state, store::StateOf(db, id));
    if (!IsTerminal(state)) {
      others.left.push_back(id);
      continue;
    }
    others.have_ended = true;
    if (state == JobState::kSucceeded || !others.failed.empty()) continue;
    others.failed = id;
    others.failed_state = state;
  }
  return others;
}

absl::Status SettleDependencies(Database& db, const std::string& job_id, int64_t now_us,
                                ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(JobRecord job, store::GetJob(db, job_id));
  if (job.state != JobState::kPending) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const ScheduleRecord schedule, store::GetSchedule(db, job_id));
  SFT_ASSIGN_OR_RETURN(const Dependencies others, ReadDependencies(db, schedule));
  if (others.failed.empty()) return store::SetAfter(db, job_id, others.left);
  job.verdict.domain = Verdict::Domain::kUser;
  job.verdict.code = "dependency_failed";
  job.verdict.message = fmt::format("it was to run after {}, which has {}", others.failed,
                                    ToString(others.failed_state));
  job.verdict.advice = fmt::format(
      "see `sftctl status {}`; then submit this job again after another one", others.failed);
  changed.insert(job.id);
  return EndWaiting(db, job, now_us);
}

absl::Status EndWithoutCheckpoint(Database& db, JobRecord job,
                                  const std::vector<std::string>& notes, int64_t now_us,
                                  ChangedJobs& changed) {
  job.verdict.domain = Verdict::Domain::kInfrastructure;
  job.verdict.code = "checkpoint_lost";
  job.verdict.message =
      fmt::format("no checkpoint of {} can be reached any more", job.resumed_from);
  job.verdict.advice = "submit the job anew, or resume from another step (sftctl checkpoints JOB)";
  job.verdict.evidence = notes;
  changed.insert(job.id);
  return EndWaiting(db, job, now_us);
}

absl::StatusOr<bool> EndIfSettingsAreLost(Database& db, const std::string& job_id, int64_t now_us,
                                          ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(JobRecord job, store::GetJob(db, job_id));
  const absl::Status read = store::ReadSpec(db, job).status();
  if (!absl::IsDataLoss(read)) return read.ok() ? absl::StatusOr<bool>(false) : read;
  job.verdict = SettingsLost(std::string(Message(read)));
  changed.insert(job.id);
  SFT_RETURN_IF_ERROR(EndWaiting(db, job, now_us));
  return true;
}

std::string WhyBlocked(const JobRecord& job) {
  const ScheduleRecord& schedule = job.schedule;
  if (schedule.held) {
    return fmt::format("held{}{}: `sftctl release {}` lets it start",
                       schedule.hold_reason.empty() ? "" : ": ", schedule.hold_reason, job.id);
  }
  if (schedule.after.empty()) return "";
  return fmt::format("waiting for {} to succeed", fmt::join(schedule.after, ", "));
}

}  // namespace sft::server
