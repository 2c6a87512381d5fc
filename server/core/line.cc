#include "server/core/line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "server/core/convert.h"
#include "server/sched/order.h"
#include "server/sched/preempt.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/jobs.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

// From here on steps say more than the plan.
constexpr int64_t kMeasuredSteps = 5, kSettledSteps = 50;
// What a job may take beyond its time limit: it writes a checkpoint and ends.
constexpr int64_t kEndingUs = sched::kStopUs;

v1::Progress ProgressOf(const AttemptRecord& attempt) {
  v1::Progress progress;
  if (!progress.ParseFromString(attempt.progress)) progress.Clear();
  return progress;
}

// Left of the plan after so many steps.
int64_t PlannedLeft(const ScheduleRecord& schedule, int64_t step) {
  if (schedule.planned_us == 0 || schedule.planned_steps == 0) return schedule.planned_us;
  const auto left = static_cast<double>(std::max<int64_t>(0, schedule.planned_steps - step)) /
                    static_cast<double>(schedule.planned_steps);
  return std::max<int64_t>(1,
                           static_cast<int64_t>(static_cast<double>(schedule.planned_us) * left));
}

// How long this attempt may take.
int64_t LimitLeft(const ScheduleRecord& schedule) {
  return std::max<int64_t>(0, schedule.time_limit_us - schedule.used_us);
}

// As it is expected and shown; Ages decide.
int64_t LimitEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule) {
  return attempt.created_us + LimitLeft(schedule);
}

absl::Status EndWaiting(Database& db, JobRecord& job, int64_t now_us) {
  SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, JobState::kFailed, job.verdict.message, now_us));
  return store::AddEvent(
      db, job.id,
      {0, now_us, "verdict", job.verdict.code + ": " + job.verdict.message, job.attempt});
}

sched::RunningJob ToRunning(const AttemptRecord& attempt, const JobRecord& job,
                            const ScheduleRecord& schedule, int64_t now_us) {
  sched::RunningJob running;
  running.id = job.id;
  running.project = job.project;
  running.priority = job.priority;
  running.gpu_type = job.gpu_type;
  running.started_us = attempt.created_us;
  running.exclusive = schedule.exclusive;
  running.sweep = schedule.sweep;
  running.stopping = attempt.state == AttemptState::kStopping || job.cancel_requested;
  // A job that is told to end a second time would gain nothing.
  running.preemptible = schedule.preemptible && !running.stopping;
  running.expected_end_us = ExpectedEnd(attempt, schedule, now_us);
  if (running.stopping) {
    running.bound_end_us =
        attempt.stop_us > 0 ? attempt.stop_us + sched::kStopUs : now_us + sched::kStopUs;
    return running;
  }
  if (schedule.time_limit_us > 0) {
    running.bound_end_us = LimitEnd(attempt, schedule) + kEndingUs;
  } else if (running.expected_end_us > 0) {
    const auto whole = static_cast<double>(running.expected_end_us - attempt.created_us);
    running.bound_end_us = attempt.created_us + static_cast<int64_t>(whole * kBoundFactor);
  }
  return running;
}

}  // namespace

int64_t ExpectedEnd(const AttemptRecord& attempt, const ScheduleRecord& schedule, int64_t now_us,
                    bool* measured) {
  const v1::Progress progress = ProgressOf(attempt);
  const int64_t made = progress.step() - attempt.resume_step;
  int64_t end = 0;
  if (measured != nullptr) *measured = made >= kMeasuredSteps;
  if (made >= kMeasuredSteps && progress.total_steps() >= progress.step()) {
    const int64_t left = progress.total_steps() - progress.step();
    // Of few steps the last one says as much as their mean, which has the time to see them in it.
    const int64_t paced = progress.step() - attempt.paced_step;
    double left_us = progress.eta_seconds() * 1e6;
    if (attempt.paced_us > 0 && (paced >= kMeasuredSteps || left_us <= 0)) {
      left_us = static_cast<double>(now_us - attempt.paced_us) /
                static_cast<double>(std::max<int64_t>(1, paced)) * static_cast<double>(left);
    }
    end = now_us + static_cast<int64_t>(left_us);
  } else if (const int64_t planned = PlannedLeft(schedule, attempt.resume_step); planned > 0) {
    end = attempt.created_us + planned;
  }
  if (end > 0 && schedule.time_limit_us > 0) end = std::min(end, LimitEnd(attempt, schedule));
  return end;
}

absl::StatusOr<std::vector<LiveJob>> LoadLive(Database& db) {
  SFT_ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, store::LiveJobs(db));
  std::vector<LiveJob> live;
  for (JobRecord& job : jobs) {
    SFT_ASSIGN_OR_RETURN(auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
    if (!attempt.has_value()) continue;
    SFT_ASSIGN_OR_RETURN(job.schedule, store::GetSchedule(db, job.id));
    SFT_ASSIGN_OR_RETURN(std::vector<MemberRecord> members, store::MembersOf(db, attempt->uid));
    live.push_back({std::move(job), *std::move(attempt), std::move(members)});
  }
  return live;
}

absl::Status AddWork(Database& db, const std::vector<LiveJob>& live, int64_t now_us,
                     sched::Snapshot& snapshot) {
  snapshot.now_us = now_us;
  std::map<std::string, double> usage;
  for (const auto& [job, attempt, members] : live) {
    sched::RunningJob running = ToRunning(attempt, job, job.schedule, now_us);
    for (const MemberRecord& member : members) {
      running.parts.push_back({member.status.node, member.slots});
    }
    SFT_ASSIGN_OR_RETURN(running.saved_us, store::NewestCommit(db, job.id));
    usage[job.project] +=
        static_cast<double>(std::max<int64_t>(0, now_us - attempt.created_us)) * running.gpus();
    snapshot.running.push_back(std::move(running));
  }
  SFT_ASSIGN_OR_RETURN(const auto limits, store::ListLimits(db));
  for (const auto& [name, limit] : limits) {
    snapshot.projects.push_back(
        {name, limit.share, sched::Decayed(limit.usage_us, limit.usage_at_us, now_us) + usage[name],
         limit.max_gpus, limit.max_running});
  }
  for (const auto& [name, used_us] : usage) {
    if (!limits.contains(name)) snapshot.projects.push_back({name, 1, used_us, 0, 0});
  }
  return absl::OkStatus();
}

void AddSchedule(const JobRecord& job, sched::PendingJob& pending) {
  const ScheduleRecord& schedule = job.schedule;
  pending.project = job.project;
  pending.priority = job.priority;
  pending.submitted_us = job.created_us;
  pending.exclusive = schedule.exclusive;
  pending.sweep = schedule.sweep;
  pending.sweep_limit = schedule.sweep_limit;
  pending.expected_us = PlannedLeft(schedule, job.restart.saved_step);
  if (schedule.time_limit_us > 0) {
    const int64_t left = std::max<int64_t>(1, schedule.time_limit_us - schedule.used_us);
    pending.bound_us = left + kEndingUs;
    if (pending.expected_us > 0) pending.expected_us = std::min(pending.expected_us, left);
  } else if (pending.expected_us > 0) {
    pending.bound_us =
        static_cast<int64_t>(static_cast<double>(pending.expected_us) * kBoundFactor);
  }
  pending.blocked = WhyBlocked(job);
}

absl::StatusOr<Dependencies> LookAtOthers(Database& db, const ScheduleRecord& schedule) {
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

absl::Status Release(Database& db, const std::string& job_id, int64_t now_us,
                     ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(JobRecord job, store::GetJob(db, job_id));
  if (job.state != JobState::kPending) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const ScheduleRecord schedule, store::GetSchedule(db, job_id));
  SFT_ASSIGN_OR_RETURN(const Dependencies others, LookAtOthers(db, schedule));
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

std::string WhyBlocked(const JobRecord& job) {
  const ScheduleRecord& schedule = job.schedule;
  if (schedule.held) {
    return fmt::format("held{}{}: `sftctl release {}` lets it start",
                       schedule.hold_reason.empty() ? "" : ": ", schedule.hold_reason, job.id);
  }
  if (schedule.after.empty()) return "";
  return fmt::format("waiting for {} to succeed", fmt::join(schedule.after, ", "));
}

bool IsAtTimeLimit(const LiveJob& live, int64_t age_us) {
  const ScheduleRecord& schedule = live.job.schedule;
  if (schedule.time_limit_us == 0 || live.attempt.state >= AttemptState::kStopping) return false;
  const int64_t left_us = LimitLeft(schedule) - age_us;
  return left_us <= 0 || (!schedule.warned && left_us <= schedule.warn_before_us);
}

absl::Status KeepTimeLimit(Database& db, const LiveJob& live, int64_t age_us, int64_t now_us,
                           ChangedJobs& changed) {
  const auto& [job, seen, members] = live;
  const ScheduleRecord& schedule = job.schedule;
  const int64_t left_us = LimitLeft(schedule) - age_us;
  if (left_us <= 0) {
    const std::string reason =
        fmt::format("its scheduling.time_limit of {} is over",
                    DurationText(std::chrono::microseconds(schedule.time_limit_us)));
    return StopAttempt(db, seen.uid, kTimeLimit, reason, now_us, changed);
  }
  SFT_ASSIGN_OR_RETURN(AttemptRecord attempt, store::GetAttempt(db, seen.uid));
  if (attempt.state >= AttemptState::kStopping) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(store::SetWarned(db, job.id));
  ++attempt.checkpoints_asked;
  attempt.checkpoint_request = kTimeLimit;
  SFT_RETURN_IF_ERROR(store::AskForCheckpoint(db, attempt));
  changed.insert(job.id);
  return store::AddEvent(
      db, job.id,
      {0, now_us, "warning",
       fmt::format("its scheduling.time_limit of {} is over at {}: it writes a checkpoint now, "
                   "and ends then",
                   DurationText(std::chrono::microseconds(schedule.time_limit_us)),
                   FormatUtc(FromUnixMicros(now_us + left_us))),
       job.attempt});
}

absl::Status Preempt(Database& db, const sched::Preemption& preemption, int64_t now_us,
                     ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const JobRecord victim, store::GetJob(db, preemption.job));
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, victim.id, victim.attempt));
  if (!attempt.has_value()) return absl::OkStatus();
  // Whose project has the job may not know the other.
  SFT_ASSIGN_OR_RETURN(const JobRecord other, store::GetJob(db, preemption.by));
  SFT_ASSIGN_OR_RETURN(const ScheduleRecord schedule, store::GetSchedule(db, other.id));
  // It was cancelled or held since.
  if (other.state != JobState::kPending || schedule.held) return absl::OkStatus();
  const std::string why =
      "preempted by " + (other.project == victim.project ? other.id : "a job of another project");
  return StopAttempt(db, attempt->uid, kPreempted, why, now_us, changed);
}

Outlooks::Map Expect(const sched::Decision& decision, const std::vector<LiveJob>& live,
                     int64_t now_us) {
  Outlooks::Map outlooks;
  for (const sched::Waiting& waiting : decision.waiting) {
    v1::Outlook& outlook = outlooks[waiting.job];
    outlook.set_place(waiting.place);
    outlook.set_source("plan");
    if (waiting.start_us > 0) *outlook.mutable_start_time() = ToTimestamp(waiting.start_us);
    if (waiting.end_us > 0) *outlook.mutable_end_time() = ToTimestamp(waiting.end_us);
    if (!waiting.promised.empty()) {
      *outlook.mutable_promised_start_time() = ToTimestamp(waiting.promised.start_us);
    }
  }
  for (const auto& [job, attempt, members] : live) {
    bool measured = false;
    const int64_t end = ExpectedEnd(attempt, job.schedule, now_us, &measured);
    if (end == 0 || attempt.state >= AttemptState::kStopping) continue;
    v1::Outlook& outlook = outlooks[job.id];
    *outlook.mutable_end_time() = ToTimestamp(end);
    outlook.set_source(measured ? "measured" : "plan");
  }
  return outlooks;
}

std::vector<EstimateRecord> FirstEstimates(const sched::Snapshot& snapshot,
                                           const sched::Decision& decision, int64_t now_us) {
  std::vector<EstimateRecord> estimates;
  std::map<std::string_view, const sched::PendingJob*> pending;
  for (const sched::PendingJob& job : snapshot.pending) pending[job.id] = &job;
  const auto add = [&](const sched::PendingJob& job, int64_t start_us, int64_t end_us) {
    if (start_us == 0) return;
    EstimateRecord& record = estimates.emplace_back();
    record.job_id = job.id;
    record.project = job.project;
    record.gpu_type = job.gpu_type;
    record.gpus = job.gpus();
    record.submitted_us = job.submitted_us;
    record.start_us = start_us;
    record.end_us = end_us;
  };
  for (const sched::Waiting& waiting : decision.waiting) {
    add(*pending.at(waiting.job), waiting.start_us, waiting.end_us);
  }
  for (const sched::Placement& placement : decision.placements) {
    const sched::PendingJob& job = *pending.at(placement.job);
    add(job, now_us, job.expected_us > 0 ? now_us + job.expected_us : 0);
  }
  return estimates;
}

bool HasPaceToStore(const LiveJob& live) {
  const int64_t step = ProgressOf(live.attempt).step(), made = step - live.attempt.resume_step;
  if (live.attempt.paced_us == 0) return made > 0;
  return made >= kSettledSteps && step - live.attempt.paced_step >= kMeasuredSteps;
}

absl::Status StorePace(Database& db, const LiveJob& live, int64_t now_us) {
  const auto& [job, attempt, members] = live;
  if (attempt.paced_us == 0) {
    // Fifty steps of a quick job may be the first that are heard of: what they took is not known.
    return store::SetPace(db, attempt.uid, ProgressOf(attempt).step(), now_us);
  }
  const int64_t end = ExpectedEnd(attempt, job.schedule, now_us);
  if (end == 0 || attempt.state >= AttemptState::kStopping) return absl::OkStatus();
  return store::SetEstimateAt50(db, job.id, now_us, end);
}

}  // namespace sft::server
