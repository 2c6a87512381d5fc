// Holds of jobs: those that wait, and those that are paused.

#include <fmt/format.h>

#include "server/gangs/gang_life.h"
#include "server/jobs/job_manager.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

// Whether the wish for a hold, or for its end, may be noted: the job waits, or is about to.
absl::Status CheckHoldable(const JobRecord& job, const ScheduleRecord& schedule,
                           JobManager::Holding holding) {
  using Holding = JobManager::Holding;
  const bool runs = job.state == JobState::kPreparing || job.state == JobState::kRunning;
  if (job.state == JobState::kPending || (runs && holding == Holding::kPause)) {
    return absl::OkStatus();
  }
  // One that is being paused goes on as soon as it has stopped.
  if (runs && holding == Holding::kRelease && schedule.held) return absl::OkStatus();
  return FailedPrecondition(fmt::format(
      "job {} is {}: only a job that waits is {}", job.id, ToString(job.state),
      holding == Holding::kRelease
          ? "released"
          : "held; `sftctl hold JOB --pause` has one that runs write a checkpoint and wait"));
}

}  // namespace

absl::StatusOr<v1::Job> JobManager::Hold(const std::string& name, Holding holding,
                                         const std::string& reason, const Actor& actor) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  absl::StatusOr<v1::Job> view = Internal("not run");
  const bool held = holding != Holding::kRelease;
  ChangedJobs changed;
  const int64_t now_us = UnixMicros(clock_.Wall());
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        changed.clear();
        SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, ref));
        SFT_ASSIGN_OR_RETURN(const ScheduleRecord schedule, store::GetSchedule(db, job.id));
        SFT_RETURN_IF_ERROR(CheckHoldable(job, schedule, holding));
        if (schedule.held != held || schedule.hold_reason != reason) {
          SFT_RETURN_IF_ERROR(store::SetHold(db, job.id, held, reason));
          SFT_RETURN_IF_ERROR(store::AddEvent(
              db, job.id, {0, now_us, held ? "held" : "released", reason, job.attempt}));
        }
        if (job.state != JobState::kPending && held) {
          SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
          if (!attempt.has_value()) return Internal(fmt::format("job {} has no attempt", job.id));
          SFT_RETURN_IF_ERROR(
              StopAttempt(db, attempt->uid, kMoved, "paused by " + actor.name, now_us, changed));
        }
        view = ViewOf(db, ref);
        return view.status();
      },
      actor.audit));
  changed.insert(ref.id);
  for (const std::string& job : changed) hub_.Bump(job);
  wake_();
  return view;
}

}  // namespace sft::server
