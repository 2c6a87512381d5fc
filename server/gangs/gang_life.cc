#include "server/gangs/gang_life.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "server/core/convert.h"
#include "server/gangs/node_checks.h"
#include "server/sched/order.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"
#include "server/store/schedules.h"
#include "server/store/tallies.h"
#include "server/store/webhook_events.h"

namespace sft::server {
namespace {

// "node-a slots 0,1; node-b slots 2": the web page reads it (lib/gpu_use.js).
std::string DescribePlacement(const sched::Placement& placement) {
  std::vector<std::string> parts;
  for (const sched::Part& part : placement.parts) {
    parts.push_back(fmt::format("{} slots {}", part.node, fmt::join(part.slots, ",")));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

absl::Status EndJob(Database& db, JobRecord& job, const AttemptRecord& attempt, JobState to,
                    int64_t now_us) {
  job.verdict = attempt.verdict;
  const int64_t ended_us = attempt.ended_us;
  // A gang can end between two reports: the job still takes every edge of its table.
  if (to == JobState::kSucceeded && job.state == JobState::kPreparing) {
    SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, JobState::kRunning, "", now_us, ended_us));
  }
  const std::string reason = to == JobState::kSucceeded ? "" : attempt.verdict.message;
  SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, to, reason, now_us, ended_us));
  const Verdict& verdict = attempt.verdict;
  std::string text = verdict.code;
  if (!verdict.message.empty() && verdict.message != verdict.code) text += ": " + verdict.message;
  return store::AddEvent(db, job.id, {0, now_us, "verdict", text, attempt.number});
}

// A checkpoint that its attempt could not begin from is not tried again.
absl::Status BlameCheckpoint(Database& db, const AttemptRecord& attempt) {
  const Verdict& verdict = attempt.verdict;
  const bool blamed = verdict.code == "checkpoint_lost" || verdict.code == "checkpoint_damaged";
  if (!blamed || attempt.resume_uid.empty()) return absl::OkStatus();
  return store::SetCheckpointProblem(db, attempt.resume_uid, attempt.resume_step, verdict.message);
}

absl::Status BlameNode(Database& db, const AttemptRecord& attempt) {
  const Verdict& verdict = attempt.verdict;
  if (verdict.domain != Verdict::Domain::kInfrastructure || verdict.node.empty()) {
    return absl::OkStatus();
  }
  return store::AddNodeFault(db, {verdict.node, attempt.ended_us, attempt.job_id, verdict.code});
}

absl::StatusOr<FailedAttempt> Describe(Database& db, const AttemptRecord& attempt) {
  FailedAttempt failed;
  failed.verdict = attempt.verdict;
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
  // One that answers with a checkpoint counts its answers from 0.
  failed.resume_step = job.kind == v1::Job::SFT ? attempt.resume_step : 0;
  failed.furthest_step = attempt.progress.step;
  SFT_ASSIGN_OR_RETURN(failed.saved_step, store::NewestStepOf(db, attempt.uid));
  failed.lived_us = attempt.ended_us - attempt.created_us;
  return failed;
}

// Its job goes on later, though nothing failed.
bool IsSetAside(const AttemptRecord& attempt) {
  return (attempt.stop_code == kPreempted || attempt.stop_code == kMoved ||
          attempt.stop_code == kBudgetReached) &&
         attempt.verdict.code == attempt.stop_code;
}

// The job is PENDING again.
absl::Status NoteRestart(Database& db, const JobRecord& job, const AttemptRecord& attempt,
                         int64_t now_us) {
  SFT_RETURN_IF_ERROR(
      store::AddTally(db, {store::Tally::kAttemptsRestarted, attempt.verdict.code, "", 1}));
  return store::TellJob(db, IsSetAside(attempt) ? "job.preempted" : "job.restarted", job,
                        attempt.verdict, now_us);
}

// Nothing failed: the job stands in the line again.
absl::Status BackToTheLine(Database& db, JobRecord& job, AttemptRecord& attempt, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(const FailedAttempt set_aside, Describe(db, attempt));
  job.restart = WithProgress(job.restart, set_aside);
  SFT_ASSIGN_OR_RETURN(const ScheduleRecord schedule, store::GetSchedule(db, job.id));
  attempt.verdict.action = schedule.held
                               ? "goes on from its checkpoint once it is released"
                               : "placed again from its checkpoint as soon as there is room";
  SFT_RETURN_IF_ERROR(store::SetAttemptVerdict(db, attempt));
  job.avoid_node.clear();
  job.not_before_us = 0;
  SFT_RETURN_IF_ERROR(store::SetRestart(db, job));
  SFT_RETURN_IF_ERROR(
      store::TakeEdge(db, job, JobState::kPending, attempt.verdict.message, now_us));
  SFT_RETURN_IF_ERROR(NoteRestart(db, job, attempt, now_us));
  return store::AddEvent(db, job.id,
                         {0, now_us, attempt.stop_code,
                          attempt.verdict.message + "; " + attempt.verdict.action, attempt.number});
}

// GPU time counts for the job's limit and for its project's share.
absl::Status CountUse(Database& db, const JobRecord& job, const AttemptRecord& attempt) {
  const int64_t held_us = std::max<int64_t>(0, attempt.ended_us - attempt.created_us);
  SFT_RETURN_IF_ERROR(store::AddUsedTime(db, job.id, held_us));
  SFT_ASSIGN_OR_RETURN(ProjectLimits limits, store::GetLimits(db, job.project));
  limits.usage_us = sched::Decayed(limits.usage_us, limits.usage_at_us, attempt.ended_us) +
                    static_cast<double>(held_us) * job.gpus_per_node * job.nodes;
  limits.usage_at_us = attempt.ended_us;
  return store::PutLimits(db, limits);
}

// A failed attempt ends its job, or the job goes back to PENDING.
absl::Status FailOrRestart(Database& db, JobRecord& job, AttemptRecord& attempt,
                           const RestartPace& pace, int64_t now_us) {
  if (IsSetAside(attempt)) return BackToTheLine(db, job, attempt, now_us);
  SFT_ASSIGN_OR_RETURN(const FailedAttempt failed, Describe(db, attempt));
  const absl::StatusOr<spec::JobSpec> spec = store::ReadSpec(db, job);
  if (!spec.ok() && !absl::IsDataLoss(spec.status())) return spec.status();
  const RestartDecision decision =
      spec.ok() ? DecideRestart(failed, job.restart, RestartRulesOf(*spec), pace)
                : DecideWithoutSettings(failed, job.restart, std::string(Message(spec.status())));
  SFT_RETURN_IF_ERROR(BlameCheckpoint(db, attempt));
  SFT_RETURN_IF_ERROR(BlameNode(db, attempt));
  const Verdict of_attempt = attempt.verdict;
  attempt.verdict = decision.verdict;
  job.restart = decision.state;
  job.avoid_node = of_attempt.node;
  job.not_before_us = decision.restart ? now_us + decision.delay_us : 0;
  SFT_RETURN_IF_ERROR(store::SetRestart(db, job));
  if (!decision.restart) {
    SFT_RETURN_IF_ERROR(EndJob(db, job, attempt, JobState::kFailed, now_us));
    // The attempt keeps what was wrong with it; the job says why it is not tried again.
    attempt.verdict = of_attempt;
    attempt.verdict.action = decision.verdict.action;
    attempt.verdict.retries_left = decision.verdict.retries_left;
    return store::SetAttemptVerdict(db, attempt);
  }
  SFT_RETURN_IF_ERROR(store::SetAttemptVerdict(db, attempt));
  const std::string reason =
      fmt::format("restarts after {}: {}", FormatUtc(FromUnixMicros(job.not_before_us)),
                  attempt.verdict.message);
  SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, JobState::kPending, reason, now_us));
  SFT_RETURN_IF_ERROR(NoteRestart(db, job, attempt, now_us));
  return store::AddEvent(db, job.id,
                         {0, now_us, "verdict",
                          fmt::format("{}: {}; {}", attempt.verdict.code, attempt.verdict.message,
                                      attempt.verdict.action),
                          attempt.number});
}

// The job's part of an edge its attempt has just taken.
absl::Status FollowAttempt(Database& db, JobRecord& job, AttemptRecord& attempt,
                           const RestartPace& pace, int64_t now_us) {
  switch (attempt.state) {
    case AttemptState::kPlaced:
    case AttemptState::kPreparing:
      return absl::OkStatus();
    case AttemptState::kRunning:
      return store::TakeEdge(db, job, JobState::kRunning, "", now_us);
    case AttemptState::kStopping:
      if (job.cancel_requested) {
        if (job.state == JobState::kCancelling) return absl::OkStatus();
        return store::TakeEdge(db, job, JobState::kCancelling, attempt.reason, now_us);
      }
      return store::SetReason(db, job.id, job.state, "stopping: " + attempt.reason, now_us, true)
          .status();
    case AttemptState::kSucceeded:
      SFT_RETURN_IF_ERROR(store::SetEnded(db, job.id, attempt.ended_us));
      return EndJob(db, job, attempt, JobState::kSucceeded, now_us);
    case AttemptState::kFailed:
      return FailOrRestart(db, job, attempt, pace, now_us);
    case AttemptState::kCancelled:
      return EndJob(db, job, attempt, JobState::kCancelled, now_us);
  }
  return Internal("unknown attempt state");
}

Gang MakeGang(const AttemptRecord& attempt, const JobRecord& job,
              const std::vector<MemberRecord>& members) {
  Gang gang;
  gang.state = attempt.state;
  gang.cancel_requested = job.cancel_requested;
  gang.cancel_reason = job.cancel_reason;
  gang.verdict = attempt.verdict;
  if (!attempt.stop_code.empty()) {
    const bool limit = attempt.stop_code == kTimeLimit;
    gang.stop.domain = limit ? Verdict::Domain::kUser : Verdict::Domain::kNone;
    gang.stop.code = attempt.stop_code;
    gang.stop.message = attempt.stop_reason;
    if (limit) {
      gang.stop.advice = fmt::format(
          "`sftctl resume {}` goes on from its last checkpoint for as long again; add --time-limit "
          "DURATION for longer",
          attempt.job_id);
    }
  }
  for (const MemberRecord& member : members) gang.members.push_back(member.status);
  return gang;
}

absl::Status CollectNext(Database& db, AttemptRecord& attempt,
                         const std::vector<MemberRecord>& members) {
  std::vector<Member> nodes;
  for (const MemberRecord& member : members) nodes.push_back(member.status);
  const int64_t step = CollectedStep(attempt.collecting, nodes);
  if (step == attempt.collecting) return absl::OkStatus();
  attempt.collecting = step;
  return store::SetCollecting(db, attempt.uid, step);
}

// A checkpoint that the last attempt was asked for and did not live to write, the next one writes.
// Two that were asked for at once may be one: then there is one more.
absl::Status TakeOverAsk(Database& db, AttemptRecord& attempt) {
  SFT_ASSIGN_OR_RETURN(const auto last,
                       store::AttemptOfJob(db, attempt.job_id, attempt.number - 1));
  if (!last.has_value() || last->checkpoints_asked == 0) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const int64_t answered, store::CountAsked(db, last->uid));
  if (answered >= last->checkpoints_asked) return absl::OkStatus();
  attempt.checkpoints_asked = 1;
  attempt.checkpoint_request = last->checkpoint_request;
  return store::AskForCheckpoint(db, attempt);
}

// An end that somebody told, within what is known: after the attempt, and its job, had begun.
int64_t Sane(int64_t ended_us, const AttemptRecord& attempt, const JobRecord& job, int64_t now_us) {
  if (ended_us == 0) return now_us;
  const int64_t begun_us = std::max(
      attempt.created_us, attempt.state >= AttemptState::kRunning ? job.started_us : int64_t{0});
  return std::max(std::min(ended_us, now_us), std::min(begun_us, now_us));
}

}  // namespace

absl::Status StartAttempt(Database& db, const sched::Placement& placement,
                          const sched::ResumeChoice& resume, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(JobRecord job, store::GetJob(db, placement.job));
  AttemptRecord attempt;
  attempt.uid = RandomId("attempt");
  attempt.job_id = job.id;
  attempt.number = ++job.attempt;
  attempt.epoch = attempt.number;
  attempt.created_us = now_us;
  if (resume.checkpoint.has_value()) {
    attempt.resume_uid = resume.checkpoint->attempt_uid;
    attempt.resume_step = resume.checkpoint->step;
  }
  std::vector<MemberRecord> members;
  int first_rank = 0;
  for (const sched::Part& part : placement.parts) {
    MemberRecord& member = members.emplace_back();
    member.attempt_uid = attempt.uid;
    member.status.node_rank = static_cast<int>(members.size()) - 1;
    member.status.node = part.node;
    member.first_rank = first_rank;
    member.slots = part.slots;
    SFT_ASSIGN_OR_RETURN(const NodeRecord node, store::GetNode(db, part.node));
    member.protocol = node.protocol;
    first_rank += static_cast<int>(part.slots.size());
  }
  SFT_RETURN_IF_ERROR(store::InsertAttempt(db, attempt, members));
  if (attempt.number == 1) {
    SFT_RETURN_IF_ERROR(store::CountWait(db, PriorityName(job.priority), now_us - job.created_us));
  }
  SFT_RETURN_IF_ERROR(TakeOverAsk(db, attempt));
  SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, JobState::kPreparing, "", now_us));
  changed.insert(job.id);
  for (const std::string& note : resume.notes) {
    SFT_RETURN_IF_ERROR(store::AddEvent(db, job.id, {0, now_us, "resume", note, attempt.number}));
  }
  std::string text = DescribePlacement(placement);
  if (resume.checkpoint.has_value()) {
    text += "; goes on from " + sched::Describe(*resume.checkpoint);
  } else if (attempt.number > 1) {
    text += "; begins at step 0: there is no checkpoint to go on from";
  }
  return store::AddEvent(db, job.id, {0, now_us, "placed", text, attempt.number});
}

absl::StatusOr<RestartRules> ReadRestartRules(Database& db, const JobRecord& job) {
  const absl::StatusOr<spec::JobSpec> spec = store::ReadSpec(db, job);
  if (absl::IsDataLoss(spec.status())) return RestartRules();
  SFT_RETURN_IF_ERROR(spec.status());
  return RestartRulesOf(*spec);
}

absl::Status AdvanceGang(Database& db, const std::string& attempt_uid, const RestartPace& pace,
                         int64_t now_us, ChangedJobs& changed, int64_t ended_us) {
  SFT_ASSIGN_OR_RETURN(AttemptRecord attempt, store::GetAttempt(db, attempt_uid));
  SFT_ASSIGN_OR_RETURN(JobRecord job, store::GetJob(db, attempt.job_id));
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::MembersOf(db, attempt_uid));
  SFT_RETURN_IF_ERROR(CollectNext(db, attempt, members));
  while (true) {
    const GangStep step = DecideGang(MakeGang(attempt, job, members));
    if (step.empty()) return absl::OkStatus();
    changed.insert(job.id);
    if (step.verdict.has_value()) attempt.verdict = *step.verdict;
    if (!step.reason.empty()) attempt.reason = step.reason;
    if (!step.next.has_value()) {
      SFT_RETURN_IF_ERROR(store::SetAttemptVerdict(db, attempt));
      continue;
    }
    SFT_RETURN_IF_ERROR(store::TakeAttemptEdge(db, attempt, *step.next, now_us,
                                               Sane(ended_us, attempt, job, now_us)));
    if (IsTerminal(attempt.state)) SFT_RETURN_IF_ERROR(CountUse(db, job, attempt));
    SFT_RETURN_IF_ERROR(FollowAttempt(db, job, attempt, pace, now_us));
  }
}

absl::Status GiveUpNode(Database& db, const std::string& attempt_uid, const std::string& node,
                        const RestartPace& pace, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(std::vector<MemberRecord> members, store::MembersOf(db, attempt_uid));
  for (MemberRecord& member : members) {
    if (member.status.node != node || member.status.lost) continue;
    member.status.lost = true;
    SFT_RETURN_IF_ERROR(store::UpdateMember(db, member));
  }
  return AdvanceGang(db, attempt_uid, pace, now_us, changed);
}

absl::Status StopAttempt(Database& db, const std::string& attempt_uid, const std::string& code,
                         const std::string& reason, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(AttemptRecord attempt, store::GetAttempt(db, attempt_uid));
  if (attempt.state >= AttemptState::kStopping || !attempt.stop_code.empty()) {
    return absl::OkStatus();
  }
  attempt.stop_code = code;
  attempt.stop_reason = reason;
  attempt.stop_us = now_us;
  SFT_RETURN_IF_ERROR(store::RequestStop(db, attempt));
  SFT_RETURN_IF_ERROR(
      store::AddEvent(db, attempt.job_id, {0, now_us, code, reason, attempt.number}));
  changed.insert(attempt.job_id);
  // What follows is no failure: no restart is paced by it.
  return AdvanceGang(db, attempt_uid, RestartPace(), now_us, changed);
}

absl::Status CancelJob(Database& db, const std::string& job_id, const std::string& reason,
                       bool checkpoint, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(JobRecord job, store::GetJob(db, job_id));
  if (IsTerminal(job.state) || job.cancel_requested) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(store::RequestCancel(db, job_id, reason, checkpoint));
  changed.insert(job_id);
  if (job.state == JobState::kPending) {
    job.verdict = {Verdict::Domain::kUser, "cancelled",
                   reason.empty() ? "cancelled" : "cancelled: " + reason};
    return store::TakeEdge(db, job, JobState::kCancelled, job.verdict.message, now_us);
  }
  SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job_id, job.attempt));
  if (!attempt.has_value()) return Internal(fmt::format("job {} has no attempt", job_id));
  // An attempt that is stopping already for a failure: the job still shows that cancel was asked
  // for.
  if (attempt->state == AttemptState::kStopping) {
    SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, JobState::kCancelling, "cancelled", now_us));
  }
  // No restart can follow from it.
  return AdvanceGang(db, attempt->uid, RestartPace(), now_us, changed);
}

}  // namespace sft::server
