#include "server/core/scene.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/duration.h"
#include "server/core/line.h"
#include "server/core/node_checks.h"
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

// Since this wire protocol workers go on from checkpoints.
constexpr int kResumesSince = 2;

std::string SilentText(const NodeRecord& node) {
  return fmt::format("silent since {}", FormatUtc(FromUnixMicros(node.last_seen_us)));
}

// Waits between two attempts. A wall clock that went back must not make that longer.
bool IsHeldBack(const JobRecord& job, int64_t now_us, const RestartPace& pace) {
  return job.not_before_us > now_us && job.not_before_us - now_us <= pace.max_delay_us;
}

absl::Status AddModels(Database& db, sched::Snapshot& snapshot) {
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
    if (models.size() < store::kMaxPage) return absl::OkStatus();
  }
}

// The nodes of the database, usable where their stream lives. With them, whether a drained one
// moves jobs, now or later.
absl::Status AddNodes(Database& db, const WorkerRegistry& registry, Scene& scene) {
  SFT_ASSIGN_OR_RETURN(const auto scores,
                       NodeScores(db, registry.now_us(), registry.options().score));
  SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
  SFT_ASSIGN_OR_RETURN(const auto facts, store::AllFacts(db));
  SFT_ASSIGN_OR_RETURN(scene.nodes, store::AllNodes(db));
  for (const NodeRecord& node : scene.nodes) {
    sched::NodeView& view = scene.snapshot.nodes.emplace_back();
    view.name = node.name;
    const WorkerRegistry::Live live = registry.Get(node.name);
    const auto hold = holds.find(node.name);
    view.unusable_reason = WhyUnusable(node, live, hold == holds.end() ? nullptr : &hold->second);
    view.usable = view.unusable_reason.empty();
    view.has_shared = node.has_shared_folder;
    view.protocol = node.protocol;
    if (const auto found = scores.find(node.name); found != scores.end()) {
      view.left_out = found->second.reason;
      // It ends with time alone.
      scene.waits_for_time = scene.waits_for_time || !found->second.resting.empty();
      if (view.usable) view.unusable_reason = WhyResting(scores, node.name, live);
      view.usable = view.unusable_reason.empty();
    }
    if (const auto found = facts.find(node.name); found != facts.end()) {
      v1::NodeFacts said;
      if (said.ParseFromString(found->second.facts)) view.domain = FabricOf(said);
    }
    for (const SlotRecord& slot : node.slots) {
      view.slots.push_back({slot.index, slot.gpu_type, slot.healthy, slot.job_id});
    }
    if (live.silent) scene.waits_for_time = scene.nodes_changed = true;
    if (live.silent != (node.state == NodeState::kSuspect)) scene.nodes_changed = true;
  }
  for (const auto& [name, hold] : holds) {
    if (hold.mode == store::HoldMode::kDrain && hold.move_us != 0) scene.nodes_changed = true;
  }
  return AddModels(db, scene.snapshot);
}

absl::Status AddPending(Database& db, const WorkerRegistry& registry, int64_t now_us, Nanos margin,
                        Scene& scene) {
  for (JobRecord& job : scene.pending) {
    if (IsHeldBack(job, now_us, registry.options().pace)) {
      scene.waits_for_time = true;
      continue;
    }
    SFT_ASSIGN_OR_RETURN(const Dependencies others, LookAtOthers(db, job.schedule));
    if (others.have_ended) scene.released.push_back(job);
    if (!others.failed.empty()) continue;
    job.schedule.after = others.left;
    sched::PendingJob view = ToPending(job);
    AddSchedule(job, view);
    const auto promise = scene.promises.find(job.id);
    if (promise != scene.promises.end()) view.promised = promise->second;
    if (job.attempt > 0 || !job.resumed_from.empty()) {
      SFT_ASSIGN_OR_RETURN(sched::ResumeChoice choice, ChooseFor(db, registry, job, margin));
      view.only_nodes = choice.only_nodes;
      view.needs_shared = choice.needs_shared;
      if (choice.checkpoint.has_value() && view.protocol < kResumesSince) {
        view.protocol = kResumesSince;
        view.newer_keys = "going on from a checkpoint";
      }
      const bool begins_anew = !choice.checkpoint.has_value();
      scene.choices[job.id] = std::move(choice);
      if (begins_anew && !job.resumed_from.empty()) {
        scene.stranded.push_back(job);
        continue;
      }
    }
    scene.snapshot.pending.push_back(std::move(view));
  }
  return absl::OkStatus();
}

// So long a node may take to say that it has what it was given; then it is told.
constexpr int64_t kTakesUpUs = 60'000'000;

// What a node tries again and again for an attempt, by its last word.
std::string WhatIsRetried(const WorkerRegistry& registry, const std::string& node,
                          const AttemptRecord& attempt) {
  const WorkerRegistry::Live live = registry.Get(node);
  for (const v1::AttemptStatus& status : live.observed.attempts()) {
    if (status.attempt_uid() == attempt.uid && status.epoch() == attempt.epoch &&
        !status.retrying().empty()) {
      return fmt::format("{}: {}", node, BoundedText(status.retrying()));
    }
  }
  return "";
}

// Why a job with an attempt does not go on, if there is something to say. With `is_news` whether it
// is an event.
absl::StatusOr<std::string> WhyStuck(Database& db, const WorkerRegistry& registry,
                                     const LiveJob& live,
                                     const std::map<std::string_view, const NodeRecord*>& nodes,
                                     int64_t now_us, bool& is_news) {
  is_news = true;
  for (const MemberRecord& member : live.members) {
    const auto node = nodes.find(member.status.node);
    if (member.status.lost || node == nodes.end() || node->second->state != NodeState::kSuspect) {
      continue;
    }
    SFT_ASSIGN_OR_RETURN(const std::string resolved, store::ResolvedJsonOf(db, live.job));
    const RestartRules rules = RestartRulesOf(resolved);
    const std::string then =
        !rules.replace_unreachable ? "nothing on it is stopped"
        : member.protocol < kFencesSince
            ? "nothing on it is stopped: its worker was too old to do so by itself"
            : fmt::format("the job is placed elsewhere if that lasts {}",
                          DurationText(std::chrono::microseconds(rules.unreachable_after_us)));
    return fmt::format("waiting for {}, {}; {}", node->first, SilentText(*node->second), then);
  }
  for (const MemberRecord& member : live.members) {
    if (member.status.stuck) {
      return fmt::format("waiting for processes on {} that do not end: {}", member.status.node,
                         member.status.reason);
    }
  }
  for (const MemberRecord& member : live.members) {
    const bool waited = now_us - live.attempt.created_us > kTakesUpUs;
    if (waited && IsNotTakenUp(member) && registry.Get(member.status.node).connected) {
      return fmt::format("waiting for {} to take it up: look at its sft-worker",
                         member.status.node);
    }
  }
  is_news = false;
  for (const MemberRecord& member : live.members) {
    std::string retried = WhatIsRetried(registry, member.status.node, live.attempt);
    if (!retried.empty()) return retried;
  }
  return live.attempt.state == AttemptState::kStopping ? live.attempt.reason : "";
}

absl::Status Explain(Database& db, const WorkerRegistry& registry, int64_t now_us, Scene& scene) {
  std::map<std::string_view, const NodeRecord*> nodes;
  for (const NodeRecord& node : scene.nodes) nodes[node.name] = &node;
  for (const LiveJob& live : scene.live) {
    if (IsTerminal(live.attempt.state)) continue;
    bool is_news = false;
    SFT_ASSIGN_OR_RETURN(std::string reason, WhyStuck(db, registry, live, nodes, now_us, is_news));
    if (reason == live.job.reason) continue;
    scene.explanations.push_back(
        {live.job.id, live.job.state, live.job.reason, std::move(reason), is_news});
  }
  return absl::OkStatus();
}

// Attempts on nodes that were removed since, or that do not take them up, are to be given up there.
void LookForLostParts(int64_t now_us, Scene& scene) {
  for (const LiveJob& live : scene.live) {
    for (const MemberRecord& member : live.members) {
      if (member.status.lost || member.status.state == MemberState::kDone) continue;
      if (IsNotTakenUp(member) && now_us - live.attempt.created_us > kTakesUpUs) {
        scene.waits_for_time = scene.nodes_changed = true;
      }
      if (std::ranges::binary_search(scene.nodes, member.status.node, {}, &NodeRecord::name)) {
        continue;
      }
      scene.waits_for_time = scene.nodes_changed = true;
    }
  }
}

}  // namespace

absl::StatusOr<Scene> ReadScene(Database& db, const WorkerRegistry& registry, int64_t now_us,
                                Nanos margin) {
  Scene scene;
  SFT_RETURN_IF_ERROR(AddNodes(db, registry, scene));
  SFT_ASSIGN_OR_RETURN(scene.pending, store::PendingJobs(db, Scene::kMaxPending));
  for (JobRecord& job : scene.pending) {
    SFT_ASSIGN_OR_RETURN(job.schedule, store::GetSchedule(db, job.id));
  }
  SFT_ASSIGN_OR_RETURN(scene.promises, store::AllPromises(db));
  SFT_ASSIGN_OR_RETURN(scene.live, LoadLive(db));
  LookForLostParts(now_us, scene);
  SFT_RETURN_IF_ERROR(AddWork(db, scene.live, now_us, scene.snapshot));
  SFT_RETURN_IF_ERROR(AddPending(db, registry, now_us, margin, scene));
  SFT_RETURN_IF_ERROR(Explain(db, registry, now_us, scene));
  return scene;
}

absl::StatusOr<sched::ResumeChoice> ChooseFor(Database& db, const WorkerRegistry& registry,
                                              const JobRecord& job, Nanos margin) {
  SFT_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> checkpoints, ResumeCandidates(db, job));
  if (checkpoints.empty()) return sched::ResumeChoice();
  SFT_ASSIGN_OR_RETURN(const std::string resolved, store::ResolvedJsonOf(db, job));
  const RestartRules rules = RestartRulesOf(resolved);
  // Of the nodes that are named alone: many jobs may ask on a large fleet.
  std::map<std::string, sched::Holder> holders;
  for (const CheckpointRecord& checkpoint : checkpoints) {
    for (const CheckpointPart& part : checkpoint.parts) {
      if (part.place != CheckpointPlace::kNode || holders.contains(part.node)) continue;
      SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, part.node));
      if (known) holders[part.node] = {IsGivenUp(registry.Get(part.node), rules, margin)};
    }
  }
  return sched::ChooseResume(checkpoints, holders);
}

bool IsNotTakenUp(const MemberRecord& member) { return !member.status.seen && !member.status.lost; }

bool IsGivenUp(const WorkerRegistry::Live& live, const RestartRules& rules, Nanos margin) {
  const Nanos limit = std::chrono::microseconds(rules.unreachable_after_us);
  return rules.replace_unreachable && live.silent && live.silent_for > limit + margin;
}

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

}  // namespace sft::server
