#include "server/scheduling/reconciler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/fleet/node_events.h"
#include "server/fleet/node_holds.h"
#include "server/gangs/desired.h"
#include "server/scheduling/budgets.h"
#include "server/scheduling/dependencies.h"
#include "server/scheduling/expectations.h"
#include "server/scheduling/scheduler_jobs.h"
#include "server/scheduling/time_limits.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"
#include "server/store/schedules.h"
#include "server/store/webhook_events.h"

namespace sft::server {
namespace {

// A prefix for the reason a job waits, about where its checkpoint is; empty where any node will do.
std::string WhereItsCheckpointIs(const sched::ResumeChoice& choice) {
  if (!choice.checkpoint.has_value()) return "";
  const std::string what = "its checkpoint of " + sched::Describe(*choice.checkpoint);
  if (choice.needs_shared) return what + " lies in the shared folder; ";
  if (choice.only_nodes.empty()) return "";
  return fmt::format("{} lies on {} alone; ", what, fmt::join(choice.only_nodes, ", "));
}

bool IsSame(const sched::ResumeChoice& a, const sched::ResumeChoice& b) {
  if (!a.checkpoint.has_value() || !b.checkpoint.has_value()) {
    return a.checkpoint.has_value() == b.checkpoint.has_value();
  }
  return a.checkpoint->attempt_uid == b.checkpoint->attempt_uid &&
         a.checkpoint->step == b.checkpoint->step;
}

// True when a promise has not changed enough to be stored. Where the end of a running job is
// unknown, the starts behind it move with the clock: they are stored at most once a minute, because
// each write triggers another decision.
bool IsAsBefore(const Reservation& before, const Reservation& now, int64_t now_us) {
  constexpr int64_t kNoNewsUs = 60'000'000;
  const int64_t later_us = now.start_us - std::max(before.start_us, now_us);
  return before.nodes == now.nodes && later_us >= 0 && later_us < kNoNewsUs;
}

bool HasSlots(const NodeRecord& node, const std::vector<int>& indexes, const std::string& type) {
  return std::all_of(indexes.begin(), indexes.end(), [&](int index) {
    return std::any_of(node.slots.begin(), node.slots.end(), [&](const SlotRecord& slot) {
      return slot.index == index && slot.healthy && slot.gpu_type == type;
    });
  });
}

}  // namespace

absl::Status Reconciler::MarkSilentNodes(Database& db, std::vector<NodeRecord>& nodes) {
  for (NodeRecord& node : nodes) {
    const WorkerRegistry::Live live = registry_.Get(node.name);
    const bool suspect = live.silent;
    if (suspect == (node.state == NodeState::kSuspect)) continue;
    const int64_t last_seen =
        live.last_seen == WallTime() ? node.last_seen_us : UnixMicros(live.last_seen);
    const std::string reason =
        suspect ? fmt::format("silent since {}; its jobs wait, or are placed elsewhere in time",
                              FormatUtc(FromUnixMicros(last_seen)))
                : "";
    spdlog::warn("node {} is {}{}{}", node.name, suspect ? "SUSPECT" : "UP", suspect ? ": " : "",
                 reason);
    node.state = suspect ? NodeState::kSuspect : NodeState::kUp;
    node.reason = reason;
    node.last_seen_us = last_seen;
    SFT_RETURN_IF_ERROR(store::SetNodeState(db, node.name, node.state, reason, last_seen));
    SFT_RETURN_IF_ERROR(NoteNodeEvent(db, node.name, suspect ? "suspect" : "up", reason,
                                      UnixMicros(clock_.Wall())));
    if (!suspect) continue;
    SFT_RETURN_IF_ERROR(store::TellNode(db, "node.suspect", node.name, reason, registry_.now_us()));
  }
  return absl::OkStatus();
}

absl::Status Reconciler::GiveUpUnreachable(Database& db, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const std::vector<AttemptRecord> attempts, store::LiveAttempts(db));
  for (const AttemptRecord& attempt : attempts) {
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                         store::MembersOf(db, attempt.uid));
    for (const MemberRecord& member : members) {
      const WorkerRegistry::Live live = registry_.Get(member.status.node);
      // A part that has ended well no longer needs its node.
      const bool done = member.status.state == MemberState::kDone;
      const bool runs_on = member.protocol < kFencesSince;
      // A connected node that does not take up its part has started nothing but still may: its
      // slots stay held. Counted from when this server first saw it, not while the server was down
      // or the node disconnected.
      const bool not_taken = IsNotTakenUp(member) && !live.silent && live.connected &&
                             std::chrono::microseconds(ages_.Of("take up " + attempt.uid,
                                                                now_us)) >= options_.take_up_limit;
      if ((!live.silent && !not_taken) || member.status.lost || done) continue;
      SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
      SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, member.status.node));
      if (known && !not_taken) {  // a node removed by an operator is off
        SFT_ASSIGN_OR_RETURN(const RestartRules rules, ReadRestartRules(db, job));
        if (runs_on || !IsGivenUp(live, rules, options_.unreachable_margin)) continue;
      }
      spdlog::warn("node {} is given up for attempt {} of job {}", member.status.node, attempt.uid,
                   job.id);
      SFT_RETURN_IF_ERROR(GiveUpNode(db, attempt.uid, member.status.node, registry_.options().pace,
                                     now_us, changed));
      changed.insert(job.id);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Reconciler::StillStands(Database& db, const sched::Placement& placement,
                                             const sched::ResumeChoice& choice) {
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, placement.job));
  if (job.state != JobState::kPending) return false;
  SFT_ASSIGN_OR_RETURN(const ScheduleRecord schedule, store::GetSchedule(db, job.id));
  if (schedule.held) return false;
  SFT_ASSIGN_OR_RETURN(const auto spent,
                       store::SpentOf(db, job.project, UnixMicros(clock_.Wall())));
  if (spent.has_value() && spent->is_reached()) return false;
  SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
  for (const sched::Part& part : placement.parts) {
    SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, part.node));
    if (!known || holds.contains(part.node)) return false;
    if (!registry_.Get(part.node).leaving.empty()) return false;
    SFT_ASSIGN_OR_RETURN(const NodeRecord node, store::GetNode(db, part.node));
    if (node.protocol < job.protocol || (choice.needs_shared && !node.has_shared_folder)) {
      return false;
    }
    if (!HasSlots(node, part.slots, job.gpu_type)) return false;
  }
  if (job.attempt == 0 && job.resumed_from.empty()) return true;
  SFT_ASSIGN_OR_RETURN(const sched::ResumeChoice now,
                       ChooseFor(db, registry_, job, options_.unreachable_margin));
  return IsSame(choice, now);
}

absl::Status Reconciler::EndStranded(Database& db, const std::string& job_id, int64_t now_us,
                                     ChangedJobs& changed) const {
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, job_id));
  if (job.state != JobState::kPending) return absl::OkStatus();
  // The node that holds the checkpoint may have come back since.
  SFT_ASSIGN_OR_RETURN(const sched::ResumeChoice choice,
                       ChooseFor(db, registry_, job, options_.unreachable_margin));
  if (choice.checkpoint.has_value()) return absl::OkStatus();
  return EndWithoutCheckpoint(db, job, choice.notes, now_us, changed);
}

absl::StatusOr<SchedulerInput> Reconciler::Look(int64_t now_us) {
  SchedulerInput input;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(input,
                         ReadSchedulerInput(db, registry_, now_us, options_.unreachable_margin));
    return absl::OkStatus();
  }));
  return input;
}

absl::Status Reconciler::UpdateNodes(int64_t now_us, ChangedJobs& changed) {
  std::vector<std::string> left;
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(std::vector<NodeRecord> nodes, store::AllNodes(db));
    SFT_ASSIGN_OR_RETURN(left, RemoveLeft(db, registry_, nodes, now_us));
    SFT_RETURN_IF_ERROR(MarkSilentNodes(db, nodes));
    SFT_RETURN_IF_ERROR(MoveOffLeaving(db, registry_, nodes, now_us, changed));
    SFT_RETURN_IF_ERROR(GiveUpUnreachable(db, now_us, changed));
    SFT_ASSIGN_OR_RETURN(const bool moves_later, MoveOffDrained(db, ages_, now_us, changed));
    waits_for_time_ = waits_for_time_ || moves_later;
    return absl::OkStatus();
  });
  SFT_RETURN_IF_ERROR(stored);
  for (const std::string& node : left) registry_.Dismiss(node);
  return absl::OkStatus();
}

void Reconciler::AddJobChanges(const SchedulerInput& input, int64_t now_us, ChangedJobs& changed,
                               std::vector<Change>& changes) {
  for (const JobRecord& job : input.released) {
    changes.push_back(
        [&, now_us](Database& db) { return SettleDependencies(db, job.id, now_us, changed); });
  }
  for (const JobRecord& job : input.stranded) {
    changes.push_back(
        [&, now_us](Database& db) { return EndStranded(db, job.id, now_us, changed); });
  }
  for (const LiveJob& live : input.live) {
    const int64_t age_us = ages_.Of(live.attempt.uid, live.attempt.created_us);
    if (IsAtTimeLimit(live, age_us)) {
      changes.push_back([&, age_us, now_us](Database& db) {
        return KeepTimeLimit(db, live, age_us, now_us, changed);
      });
    }
    if (EndsByBudget(live, input.budgets)) {
      changes.push_back(
          [&, now_us](Database& db) { return StopForBudget(db, live, now_us, changed); });
    }
    if (HasPaceToStore(live) && !noted_.contains(live.attempt.uid)) {
      changes.push_back([&, now_us](Database& db) { return StorePace(db, live, now_us); });
    }
  }
  for (const store::SpentBudget& each : input.budgets) {
    if (!HasNews(each)) continue;
    changes.push_back(
        [&, now_us](Database& db) { return TellBudget(db, each.budget.project, now_us); });
  }
  for (const Explanation& each : input.explanations) {
    changes.push_back([&, now_us](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, each.job));
      if (job.reason != each.seen) return absl::OkStatus();
      SFT_ASSIGN_OR_RETURN(const bool news, store::SetReason(db, each.job, each.state, each.reason,
                                                             now_us, each.is_news));
      if (news) changed.insert(each.job);
      return absl::OkStatus();
    });
  }
}

void Reconciler::AddDecision(const SchedulerInput& input, const sched::Decision& decision,
                             const Estimates& estimates, int64_t now_us, ChangedJobs& changed,
                             std::vector<Change>& changes) {
  static const sched::ResumeChoice kNone;
  const auto choice_of = [&](const std::string& job) -> const sched::ResumeChoice& {
    const auto found = input.choices.find(job);
    return found == input.choices.end() ? kNone : found->second;
  };
  for (const sched::Placement& placement : decision.placements) {
    const sched::ResumeChoice& choice = choice_of(placement.job);
    changes.push_back([&, now_us](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(const bool stands, StillStands(db, placement, choice));
      if (!stands) return absl::OkStatus();  // the change triggers a tick of its own
      SFT_ASSIGN_OR_RETURN(const bool lost,
                           EndIfSettingsAreLost(db, placement.job, now_us, changed));
      if (lost) return absl::OkStatus();
      SFT_RETURN_IF_ERROR(StartAttempt(db, placement, choice, now_us, changed));
      const auto first = estimates.find(placement.job);
      if (first != estimates.end()) {
        SFT_RETURN_IF_ERROR(store::InsertEstimate(db, *first->second));
      }
      return store::SetBegun(db, placement.job, now_us);
    });
  }
  for (const sched::Preemption& preemption : decision.preemptions) {
    changes.push_back(
        [&, now_us](Database& db) { return Preempt(db, preemption, now_us, changed); });
  }
  std::map<std::string_view, std::string_view> told;
  for (const JobRecord& job : input.pending) told[job.id] = job.reason;
  for (const sched::Waiting& waiting : decision.waiting) {
    std::string reason = WhereItsCheckpointIs(choice_of(waiting.job)) + waiting.reason;
    if (told[waiting.job] == reason) continue;  // usually the case in a long queue
    changes.push_back([&, now_us, reason = std::move(reason)](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(const bool news,
                           store::SetReason(db, waiting.job, JobState::kPending, reason, now_us,
                                            /*write_event=*/true));
      if (news) changed.insert(waiting.job);
      return absl::OkStatus();
    });
  }
}

void Reconciler::AddPromises(const SchedulerInput& input, const sched::Decision& decision,
                             std::vector<Change>& changes) {
  std::set<std::string_view> promised;
  for (const sched::Waiting& waiting : decision.waiting) {
    if (waiting.promised.empty()) continue;
    promised.insert(waiting.job);
    const auto before = input.promises.find(waiting.job);
    if (before != input.promises.end() &&
        IsAsBefore(before->second, waiting.promised, input.snapshot.now_us)) {
      continue;
    }
    changes.push_back(
        [&](Database& db) { return store::PutPromise(db, waiting.job, waiting.promised); });
  }
  for (const auto& [job, promise] : input.promises) {
    if (promised.contains(job)) continue;
    changes.push_back([&job](Database& db) { return store::PutPromise(db, job, Reservation()); });
  }
}

absl::Status Reconciler::Commit(const std::vector<Change>& changes) {
  absl::Status first_error;
  for (size_t begin = 0; begin < changes.size(); begin += kTogether) {
    const size_t end = std::min(changes.size(), begin + kTogether);
    const auto apply = [&](size_t from, size_t to) {
      return store_.Write([&](Database& db) -> absl::Status {
        for (size_t i = from; i < to; ++i) SFT_RETURN_IF_ERROR(changes[i](db));
        return absl::OkStatus();
      });
    };
    const absl::Status together = apply(begin, end);
    if (together.ok()) continue;
    // No disk space for any of them, or an error about one, which must not hold back the others.
    if (absl::IsResourceExhausted(together)) return together;
    for (size_t i = begin; i < end; ++i) first_error.Update(apply(i, i + 1));
  }
  return first_error;
}

absl::Status Reconciler::Decide(const SchedulerInput& input, int64_t now_us, ChangedJobs& changed) {
  const sched::Decision decision = sched::Decide(input.snapshot);
  const std::vector<EstimateRecord> estimates = FirstEstimates(input.snapshot, decision, now_us);
  std::vector<Change> changes;
  AddJobChanges(input, now_us, changed, changes);
  std::set<std::string> noted;
  Estimates by_job;
  for (const EstimateRecord& estimate : estimates) by_job[estimate.job_id] = &estimate;
  for (const sched::Waiting& waiting : decision.waiting) {
    const auto first = by_job.find(waiting.job);
    if (first == by_job.end()) continue;
    noted.insert(waiting.job);
    if (noted_.contains(waiting.job)) continue;
    const EstimateRecord& estimate = *first->second;
    changes.push_back([&estimate](Database& db) { return store::InsertEstimate(db, estimate); });
  }
  for (const LiveJob& live : input.live) {
    if (HasPaceToStore(live) && live.attempt.paced_us > 0) noted.insert(live.attempt.uid);
  }
  AddDecision(input, decision, by_job, now_us, changed, changes);
  AddPromises(input, decision, changes);
  const std::vector<WaitChange> moved = waits_.Look(input.snapshot, decision);
  for (const WaitChange& each : moved) {
    changes.push_back([&each](Database& db) { return store::AddWaitChange(db, each); });
  }
  const absl::Status committed = Commit(changes);
  if (committed.ok()) {
    noted_ = std::move(noted);
    waits_.Stored(moved);
  }
  if (outlooks_ != nullptr) outlooks_->Replace(ExpectJobs(decision, input.live, now_us));
  return committed;
}

absl::Status Reconciler::SendDesiredSets(int64_t now_us) {
  std::vector<std::pair<std::string, v1::Desired>> sets;
  absl::Status first_error;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    // Read again, because what is sent depends on the protocol that a node speaks.
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::AllNodes(db));
    for (const NodeRecord& node : nodes) {
      if (!registry_.Get(node.name).connected) continue;
      absl::StatusOr<v1::Desired> desired = BuildDesired(db, node, now_us);
      // An error about one node does not keep the others from their sets.
      first_error.Update(Annotate(desired.status(), "what node " + node.name + " shall do"));
      if (desired.ok()) sets.emplace_back(node.name, *std::move(desired));
    }
    return absl::OkStatus();
  }));
  for (auto& [node, desired] : sets) {
    ForgetStrangers(registry_.Get(node).observed, desired);
    registry_.SendDesired(node, desired);
  }
  return first_error;
}

bool Reconciler::HasWork() const {
  return waits_for_time_ || store_.commits() != seen_commits_ ||
         registry_.SilenceKey() != seen_silence_ || clock_.Mono() - ticked_ >= kIdlePeriod;
}

absl::Status Reconciler::Tick() {
  const int64_t now_us = UnixMicros(clock_.Wall());
  seen_silence_ = registry_.SilenceKey();
  seen_commits_ = -1;
  const int64_t commits_before = store_.commits();
  waits_for_time_ = false;
  ChangedJobs changed;
  SFT_ASSIGN_OR_RETURN(SchedulerInput input, Look(now_us));
  absl::Status stored;
  if (input.nodes_changed) {
    const int64_t commits = store_.commits();
    stored = UpdateNodes(now_us, changed);
    if (stored.ok() && store_.commits() != commits) {
      hub_.Bump(ChangeHub::kSomeNode);
      absl::StatusOr<SchedulerInput> again = Look(now_us);
      stored = again.status();
      if (again.ok()) input = *std::move(again);
    }
  }
  waits_for_time_ = waits_for_time_ || input.waits_for_time;
  if (stored.ok()) stored = Decide(input, now_us, changed);
  for (const std::string& job : changed) hub_.Bump(job);
  // What was stored is sent even after an error.
  stored.Update(SendDesiredSets(now_us));
  SFT_RETURN_IF_ERROR(stored);
  ages_.EndRound();
  ticked_ = clock_.Mono();
  // Changes stored since Look, by others or by this tick, may trigger another.
  seen_commits_ = commits_before;
  return absl::OkStatus();
}

}  // namespace sft::server
