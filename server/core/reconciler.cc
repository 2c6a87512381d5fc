#include "server/core/reconciler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "server/core/desired.h"
#include "server/core/line.h"
#include "server/core/node_health.h"
#include "server/core/node_holds.h"
#include "server/core/node_view.h"
#include "server/core/resume.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

// Since this wire protocol workers end ranks that the server cannot reach: a part that was given to
// an older one may run on for ever, and is waited for. Since it they go on from checkpoints, too.
constexpr int kFencesSince = 2, kResumesSince = 2;

std::string SilentText(const NodeRecord& node) {
  return fmt::format("silent since {}", FormatUtc(FromUnixMicros(node.last_seen_us)));
}

// "15m", "90s"
std::string DurationText(int64_t micros) {
  const int64_t seconds = micros / 1'000'000;
  return seconds % 60 == 0 ? fmt::format("{}m", seconds / 60) : fmt::format("{}s", seconds);
}

// Why a job with an attempt does not go on, if there is something to say.
std::string WhyStuck(const std::vector<MemberRecord>& members,
                     const std::map<std::string, NodeRecord>& nodes, const RestartRules& rules) {
  for (const MemberRecord& member : members) {
    const auto node = nodes.find(member.status.node);
    if (!member.status.lost && node != nodes.end() && node->second.state == NodeState::kSuspect) {
      const std::string then =
          !rules.replace_unreachable ? "nothing on it is stopped"
          : member.protocol < kFencesSince
              ? "nothing on it is stopped: its worker was too old to do so by itself"
              : fmt::format("the job is placed elsewhere if that lasts {}",
                            DurationText(rules.unreachable_after_us));
      return fmt::format("waiting for {}, {}; {}", node->first, SilentText(node->second), then);
    }
  }
  for (const MemberRecord& member : members) {
    if (member.status.stuck) {
      return fmt::format("waiting for processes on {} that do not end: {}", member.status.node,
                         member.status.reason);
    }
  }
  return "";
}

// Waits between two attempts. A wall clock that went back must not make that longer.
bool IsHeldBack(const JobRecord& job, int64_t now_us, const RestartPace& pace) {
  return job.not_before_us > now_us && job.not_before_us - now_us <= pace.max_delay_us;
}

// Said before what a job waits for; empty where any node will do.
std::string WhereItsCheckpointIs(const sched::ResumeChoice& choice) {
  if (!choice.checkpoint.has_value()) return "";
  const std::string what = "its checkpoint of " + sched::Describe(*choice.checkpoint);
  if (choice.needs_shared) return what + " lies in the shared folder; ";
  if (choice.only_nodes.empty()) return "";
  return fmt::format("{} lies on {} alone; ", what, fmt::join(choice.only_nodes, ", "));
}

// A job that was to go on from another's checkpoint must not quietly begin at step 0.
absl::Status EndWithoutCheckpoint(Database& db, JobRecord job, const sched::ResumeChoice& choice,
                                  int64_t now_us) {
  job.verdict.domain = Verdict::Domain::kInfrastructure;
  job.verdict.code = "checkpoint_lost";
  job.verdict.message =
      fmt::format("no checkpoint of {} can be reached any more", job.resumed_from);
  job.verdict.advice = "submit the job anew, or resume from another step (sftctl checkpoints JOB)";
  job.verdict.evidence = choice.notes;
  SFT_RETURN_IF_ERROR(store::TakeEdge(db, job, JobState::kFailed, job.verdict.message, now_us));
  return store::AddEvent(
      db, job.id,
      {0, now_us, "verdict", job.verdict.code + ": " + job.verdict.message, job.attempt});
}

}  // namespace

bool IsModelPath(const std::string& model) {
  return !model.empty() && (model.front() == '/' || model.front() == '.' || model.front() == '~');
}

sched::PendingJob ToPending(const JobRecord& job) {
  sched::PendingJob pending;
  pending.id = job.id;
  pending.gpu_type = job.gpu_type;
  pending.gpus_per_node = job.gpus_per_node;
  pending.nodes = job.nodes;
  if (!IsModelPath(job.model)) pending.model = job.model;
  pending.protocol = job.protocol;
  pending.newer_keys = job.newer_keys;
  pending.avoid_node = job.avoid_node;
  return pending;
}

absl::StatusOr<sched::Snapshot> MakeSnapshot(Database& db, const WorkerRegistry& registry) {
  sched::Snapshot snapshot;
  SFT_ASSIGN_OR_RETURN(const auto scores,
                       NodeScores(db, registry.now_us(), registry.options().score));
  SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
  SFT_ASSIGN_OR_RETURN(const auto facts, store::AllFacts(db));
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::AllNodes(db));
  for (const NodeRecord& node : nodes) {
    sched::NodeView& view = snapshot.nodes.emplace_back();
    view.name = node.name;
    const WorkerRegistry::Live live = registry.Get(node.name);
    const auto hold = holds.find(node.name);
    view.unusable_reason = WhyUnusable(node, live, hold == holds.end() ? nullptr : &hold->second);
    view.usable = view.unusable_reason.empty();
    view.has_shared = node.has_shared_folder;
    view.protocol = node.protocol;
    if (const auto found = scores.find(node.name); found != scores.end()) {
      view.left_out = found->second.reason;
    }
    if (const auto found = facts.find(node.name); found != facts.end()) {
      v1::NodeFacts said;
      if (said.ParseFromString(found->second.facts)) view.domain = FabricOf(said);
    }
    for (const SlotRecord& slot : node.slots) {
      view.slots.push_back({slot.index, slot.gpu_type, slot.healthy, slot.job_id});
    }
  }
  std::map<std::string_view, sched::NodeView*> by_name;
  for (sched::NodeView& view : snapshot.nodes) by_name[view.name] = &view;
  for (int offset = 0;; offset += store::kMaxPage) {
    SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> models,
                         store::ListModels(db, offset, store::kMaxPage));
    for (const ModelRecord& model : models) {
      if (!model.problem.empty()) continue;
      const auto found = by_name.find(model.node);
      if (found != by_name.end()) found->second->models.push_back(model.id);
    }
    if (models.size() < store::kMaxPage) return snapshot;
  }
}

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
  }
  return absl::OkStatus();
}

absl::Status Reconciler::Place(Database& db, int64_t now_us, ChangedJobs& changed, News& news) {
  SFT_ASSIGN_OR_RETURN(const std::vector<JobRecord> pending, store::PendingJobs(db, kMaxPending));
  SFT_ASSIGN_OR_RETURN(Schedules schedules, store::OpenSchedules(db));
  SFT_ASSIGN_OR_RETURN(const std::vector<LiveJob> live, LoadLive(db, schedules));
  if (pending.empty() && live.empty()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(KeepTimeLimits(db, live, now_us, changed));
  SFT_ASSIGN_OR_RETURN(sched::Snapshot snapshot, MakeSnapshot(db, registry_));
  SFT_RETURN_IF_ERROR(AddWork(db, live, now_us, snapshot));
  std::map<std::string, sched::ResumeChoice> choices;
  SFT_RETURN_IF_ERROR(AddPending(db, pending, schedules, now_us, snapshot, choices, changed));
  const sched::Decision decision = sched::Decide(snapshot);
  for (const sched::Placement& placement : decision.placements) {
    SFT_RETURN_IF_ERROR(StartAttempt(db, placement, choices[placement.job], now_us, changed));
  }
  SFT_RETURN_IF_ERROR(Preempt(db, decision.preemptions, now_us, changed));
  SFT_ASSIGN_OR_RETURN(news.outlooks, KeepEstimates(db, snapshot, decision, live, now_us));
  std::map<std::string_view, std::string_view> told;
  for (const JobRecord& job : pending) told[job.id] = job.reason;
  for (const sched::Waiting& waiting : decision.waiting) {
    if (!waiting.promised.empty()) news.promised[waiting.job] = waiting.promised;
    const std::string reason = WhereItsCheckpointIs(choices[waiting.job]) + waiting.reason;
    if (told[waiting.job] == reason) continue;  // in a long line, nearly always
    SFT_ASSIGN_OR_RETURN(const bool new_text,
                         store::SetReason(db, waiting.job, reason, now_us, true));
    if (new_text) changed.insert(waiting.job);
  }
  return absl::OkStatus();
}

absl::Status Reconciler::AddPending(Database& db, const std::vector<JobRecord>& pending,
                                    Schedules& schedules, int64_t now_us, sched::Snapshot& snapshot,
                                    std::map<std::string, sched::ResumeChoice>& choices,
                                    ChangedJobs& changed) {
  for (const JobRecord& job : pending) {
    if (IsHeldBack(job, now_us, registry_.options().pace)) {
      waits_for_time_ = true;
      continue;
    }
    ScheduleRecord& schedule = schedules[job.id];
    SFT_ASSIGN_OR_RETURN(const bool ended, EndIfImpossible(db, job, schedule, now_us, changed));
    if (ended) continue;
    sched::PendingJob view = ToPending(job);
    AddSchedule(job, schedule, view);
    if (const auto promise = promised_.find(job.id); promise != promised_.end()) {
      view.promised = promise->second;
    }
    if (job.attempt > 0 || !job.resumed_from.empty()) {
      SFT_ASSIGN_OR_RETURN(sched::ResumeChoice choice, ChooseFor(db, job));
      if (!choice.checkpoint.has_value() && !job.resumed_from.empty()) {
        SFT_RETURN_IF_ERROR(EndWithoutCheckpoint(db, job, choice, now_us));
        changed.insert(job.id);
        continue;
      }
      view.only_nodes = choice.only_nodes;
      view.needs_shared = choice.needs_shared;
      if (choice.checkpoint.has_value() && view.protocol < kResumesSince) {
        view.protocol = kResumesSince;
        view.newer_keys = "going on from a checkpoint";
      }
      choices[job.id] = std::move(choice);
    }
    snapshot.pending.push_back(std::move(view));
  }
  return absl::OkStatus();
}

absl::StatusOr<sched::ResumeChoice> Reconciler::ChooseFor(Database& db, const JobRecord& job) {
  SFT_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints, ResumeCandidates(db, job));
  if (checkpoints.empty()) return sched::ResumeChoice();
  SFT_ASSIGN_OR_RETURN(const std::string resolved, store::ResolvedJsonOf(db, job));
  const RestartRules rules = RestartRulesOf(resolved);
  std::map<std::string, sched::Holder> holders;
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::AllNodes(db));
  for (const NodeRecord& node : nodes) {
    holders[node.name] = {IsGivenUp(registry_.Get(node.name), rules)};
  }
  return sched::ChooseResume(checkpoints, holders);
}

bool Reconciler::IsGivenUp(const WorkerRegistry::Live& live, const RestartRules& rules) const {
  const Nanos limit = std::chrono::microseconds(rules.unreachable_after_us);
  return rules.replace_unreachable && live.silent &&
         live.silent_for > limit + options_.unreachable_margin;
}

absl::Status Reconciler::GiveUpUnreachable(Database& db, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const std::vector<AttemptRecord> attempts, store::LiveAttempts(db));
  for (const AttemptRecord& attempt : attempts) {
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                         store::MembersOf(db, attempt.uid));
    for (const MemberRecord& member : members) {
      const WorkerRegistry::Live live = registry_.Get(member.status.node);
      // What has ended well needs its node no more.
      const bool done = member.status.state == MemberState::kDone;
      const bool runs_on = member.protocol < kFencesSince;
      if (!live.silent || member.status.lost || done || runs_on) continue;
      SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
      SFT_ASSIGN_OR_RETURN(const std::string resolved, store::ResolvedJsonOf(db, job));
      if (!IsGivenUp(live, RestartRulesOf(resolved))) continue;
      spdlog::warn("node {} is given up for attempt {} of job {}", member.status.node, attempt.uid,
                   job.id);
      SFT_RETURN_IF_ERROR(GiveUpNode(db, attempt.uid, member.status.node, registry_.options().pace,
                                     now_us, changed));
      changed.insert(job.id);
    }
  }
  return absl::OkStatus();
}

absl::Status Reconciler::ExplainLive(Database& db, const std::vector<NodeRecord>& list,
                                     int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const std::vector<AttemptRecord> attempts, store::LiveAttempts(db));
  if (attempts.empty()) return absl::OkStatus();
  std::map<std::string, NodeRecord> nodes;
  for (const NodeRecord& node : list) nodes[node.name] = node;
  for (const AttemptRecord& attempt : attempts) {
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                         store::MembersOf(db, attempt.uid));
    RestartRules rules;
    if (std::any_of(members.begin(), members.end(), [&](const MemberRecord& member) {
          return nodes[member.status.node].state == NodeState::kSuspect;
        })) {
      SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
      SFT_ASSIGN_OR_RETURN(const std::string resolved, store::ResolvedJsonOf(db, job));
      rules = RestartRulesOf(resolved);
    }
    std::string reason = WhyStuck(members, nodes, rules);
    const bool is_news = !reason.empty();
    if (reason.empty() && attempt.state == AttemptState::kStopping) reason = attempt.reason;
    SFT_ASSIGN_OR_RETURN(const bool news,
                         store::SetReason(db, attempt.job_id, reason, now_us, is_news));
    if (news) changed.insert(attempt.job_id);
  }
  return absl::OkStatus();
}

absl::Status Reconciler::SendDesiredSets(int64_t now_us) {
  std::vector<std::pair<std::string, v1::Desired>> sets;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::AllNodes(db));
    for (const NodeRecord& node : nodes) {
      if (!registry_.Get(node.name).connected) continue;
      SFT_ASSIGN_OR_RETURN(v1::Desired desired, BuildDesired(db, node, now_us));
      sets.emplace_back(node.name, std::move(desired));
    }
    return absl::OkStatus();
  }));
  for (auto& [node, desired] : sets) {
    ForgetStrangers(registry_.Get(node).observed, desired);
    registry_.SendDesired(node, desired);
  }
  return absl::OkStatus();
}

bool Reconciler::HasWork() const {
  return waits_for_time_ || store_.commits() != seen_commits_ ||
         registry_.SilenceKey() != seen_silence_ || clock_.Mono() - ticked_ >= kIdlePeriod;
}

absl::Status Reconciler::Tick() {
  const int64_t now_us = UnixMicros(clock_.Wall());
  seen_silence_ = registry_.SilenceKey();
  seen_commits_ = -1;
  ChangedJobs changed;
  News news;
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    changed.clear();
    news = {};
    SFT_ASSIGN_OR_RETURN(std::vector<NodeRecord> nodes, store::AllNodes(db));
    SFT_RETURN_IF_ERROR(MarkSilentNodes(db, nodes));
    const bool all_heard = std::none_of(nodes.begin(), nodes.end(), [this](const NodeRecord& node) {
      return registry_.Get(node.name).silent;
    });
    waits_for_time_ = !all_heard;
    if (!all_heard) SFT_RETURN_IF_ERROR(GiveUpUnreachable(db, now_us, changed));
    SFT_ASSIGN_OR_RETURN(const bool moves_later, MoveOffDrained(db, now_us, changed));
    waits_for_time_ = waits_for_time_ || moves_later;
    SFT_RETURN_IF_ERROR(Place(db, now_us, changed, news));
    return ExplainLive(db, nodes, now_us, changed);
  });
  for (const std::string& job : changed) hub_.Bump(job);
  SFT_RETURN_IF_ERROR(stored);
  promised_ = std::move(news.promised);
  if (outlooks_ != nullptr) outlooks_->Replace(std::move(news.outlooks));
  SFT_RETURN_IF_ERROR(SendDesiredSets(now_us));
  ticked_ = clock_.Mono();
  // Whoever stored something meanwhile that matters here has asked for a tick of its own.
  seen_commits_ = store_.commits();
  return absl::OkStatus();
}

}  // namespace sft::server
