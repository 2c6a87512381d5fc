#include "server/scheduling/scheduler_jobs.h"

#include <algorithm>
#include <map>

#include "common/hub/model_name.h"
#include "server/sched/order.h"
#include "server/sched/preempt.h"
#include "server/scheduling/dependencies.h"
#include "server/scheduling/expectations.h"
#include "server/scheduling/time_limits.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/jobs.h"
#include "server/store/schedules.h"
#include "sft/v1/job.pb.h"

namespace sft::server {
namespace {

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
  // Telling a job to end a second time would gain nothing.
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

// Adds the job's scheduling settings.
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

}  // namespace

absl::Status AddRunning(Database& db, const std::vector<LiveJob>& live, int64_t now_us,
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

sched::PendingJob ToPending(const JobRecord& job) {
  sched::PendingJob pending;
  pending.id = job.id;
  pending.gpu_type = job.gpu_type;
  pending.gpus_per_node = job.gpus_per_node;
  pending.nodes = job.nodes;
  NameModel(job.model, pending);
  pending.protocol = job.protocol;
  pending.newer_keys = job.newer_keys;
  pending.avoid_node = job.avoid_node;
  pending.resumes = job.kind == v1::Job::SFT;
  AddSchedule(job, pending);
  return pending;
}

void NameModel(const std::string& model, sched::PendingJob& pending) {
  if (IsModelPath(model)) return;
  pending.model = model;
  pending.on_hub = hub::ParseModelName(model).has_value();
}

bool IsModelPath(const std::string& model) {
  return !model.empty() && (model.front() == '/' || model.front() == '.' || model.front() == '~');
}

absl::Status Preempt(Database& db, const sched::Preemption& preemption, int64_t now_us,
                     ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const JobRecord victim, store::GetJob(db, preemption.job));
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, victim.id, victim.attempt));
  if (!attempt.has_value()) return absl::OkStatus();
  // Members of the preempted job's project may not know the other project.
  SFT_ASSIGN_OR_RETURN(const JobRecord other, store::GetJob(db, preemption.by));
  SFT_ASSIGN_OR_RETURN(const ScheduleRecord schedule, store::GetSchedule(db, other.id));
  // The job was cancelled or held since.
  if (other.state != JobState::kPending || schedule.held) return absl::OkStatus();
  const std::string why =
      "preempted by " + (other.project == victim.project ? other.id : "a job of another project");
  return StopAttempt(db, attempt->uid, kPreempted, why, now_us, changed);
}

}  // namespace sft::server
