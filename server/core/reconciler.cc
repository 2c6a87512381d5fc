#include "server/core/reconciler.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/core/desired.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

constexpr int kAllNodes = store::kMaxPage;

std::string SilentText(const NodeRecord& node) {
  return fmt::format("silent since {}", FormatUtc(FromUnixMicros(node.last_seen_us)));
}

// Why a job with an attempt does not go on, if there is something to say.
std::string WhyStuck(const std::vector<MemberRecord>& members,
                     const std::map<std::string, NodeRecord>& nodes) {
  for (const MemberRecord& member : members) {
    const auto node = nodes.find(member.status.node);
    if (node != nodes.end() && node->second.state == NodeState::kSuspect) {
      return fmt::format("waiting for {}, {}; nothing on it is stopped", node->first,
                         SilentText(node->second));
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

}  // namespace

bool IsModelPath(const std::string& model) {
  return !model.empty() && (model.front() == '/' || model.front() == '.' || model.front() == '~');
}

sched::PendingJob ToPending(const JobRecord& job) {
  return {job.id, job.gpu_type, job.gpus_per_node, job.nodes,
          IsModelPath(job.model) ? "" : job.model};
}

absl::StatusOr<sched::Snapshot> MakeSnapshot(Database& db, const WorkerRegistry& registry) {
  sched::Snapshot snapshot;
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::ListNodes(db, "", kAllNodes));
  for (const NodeRecord& node : nodes) {
    sched::NodeView& view = snapshot.nodes.emplace_back();
    view.name = node.name;
    const WorkerRegistry::Live live = registry.Get(node.name);
    view.usable = live.connected && !live.silent;
    if (!view.usable) {
      view.unusable_reason =
          node.state == NodeState::kSuspect ? SilentText(node) : "not connected now";
    }
    for (const SlotRecord& slot : node.slots) {
      view.slots.push_back({slot.index, slot.gpu_type, slot.healthy, slot.job_id});
    }
  }
  for (int offset = 0;; offset += store::kMaxPage) {
    SFT_ASSIGN_OR_RETURN(const std::vector<ModelRecord> models,
                         store::ListModels(db, offset, store::kMaxPage));
    for (const ModelRecord& model : models) {
      if (!model.problem.empty()) continue;
      for (sched::NodeView& view : snapshot.nodes) {
        if (view.name == model.node) view.models.push_back(model.id);
      }
    }
    if (models.size() < store::kMaxPage) return snapshot;
  }
}

absl::Status Reconciler::MarkSilentNodes(Database& db) {
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::ListNodes(db, "", kAllNodes));
  for (const NodeRecord& node : nodes) {
    const WorkerRegistry::Live live = registry_.Get(node.name);
    const bool suspect = live.silent;
    if (suspect == (node.state == NodeState::kSuspect)) continue;
    const int64_t last_seen =
        live.last_seen == WallTime() ? node.last_seen_us : UnixMicros(live.last_seen);
    const std::string reason =
        suspect ? fmt::format("silent since {}; nothing on it is stopped, its jobs wait",
                              FormatUtc(FromUnixMicros(last_seen)))
                : "";
    spdlog::warn("node {} is {}{}{}", node.name, suspect ? "SUSPECT" : "UP", suspect ? ": " : "",
                 reason);
    SFT_RETURN_IF_ERROR(store::SetNodeState(
        db, node.name, suspect ? NodeState::kSuspect : NodeState::kUp, reason, last_seen));
  }
  return absl::OkStatus();
}

absl::Status Reconciler::Place(Database& db, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const std::vector<JobRecord> pending, store::PendingJobs(db, kMaxPending));
  if (pending.empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(sched::Snapshot snapshot, MakeSnapshot(db, registry_));
  for (const JobRecord& job : pending) snapshot.pending.push_back(ToPending(job));
  const sched::Decision decision = sched::Decide(snapshot);
  for (const sched::Placement& placement : decision.placements) {
    SFT_RETURN_IF_ERROR(StartAttempt(db, placement, now_us, changed));
  }
  for (const sched::Waiting& waiting : decision.waiting) {
    SFT_ASSIGN_OR_RETURN(const bool news,
                         store::SetReason(db, waiting.job, waiting.reason, now_us, true));
    if (news) changed.insert(waiting.job);
  }
  return absl::OkStatus();
}

absl::Status Reconciler::ExplainLive(Database& db, int64_t now_us, ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const std::vector<AttemptRecord> attempts, store::LiveAttempts(db));
  if (attempts.empty()) return absl::OkStatus();
  std::map<std::string, NodeRecord> nodes;
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> list, store::ListNodes(db, "", kAllNodes));
  for (const NodeRecord& node : list) nodes[node.name] = node;
  for (const AttemptRecord& attempt : attempts) {
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                         store::MembersOf(db, attempt.uid));
    std::string reason = WhyStuck(members, nodes);
    const bool is_news = !reason.empty();
    if (reason.empty() && attempt.state == AttemptState::kStopping) reason = attempt.reason;
    SFT_ASSIGN_OR_RETURN(const bool news,
                         store::SetReason(db, attempt.job_id, reason, now_us, is_news));
    if (news) changed.insert(attempt.job_id);
  }
  return absl::OkStatus();
}

absl::Status Reconciler::SendDesiredSets() {
  std::vector<std::pair<std::string, v1::Desired>> sets;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes, store::ListNodes(db, "", kAllNodes));
    for (const NodeRecord& node : nodes) {
      if (!registry_.Get(node.name).connected) continue;
      SFT_ASSIGN_OR_RETURN(v1::Desired desired, BuildDesired(db, node.name));
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

absl::Status Reconciler::Tick() {
  const int64_t now_us = UnixMicros(clock_.Wall());
  ChangedJobs changed;
  const absl::Status stored = store_.Write([&](Database& db) -> absl::Status {
    changed.clear();
    SFT_RETURN_IF_ERROR(MarkSilentNodes(db));
    SFT_RETURN_IF_ERROR(Place(db, now_us, changed));
    return ExplainLive(db, now_us, changed);
  });
  for (const std::string& job : changed) hub_.Bump(job);
  SFT_RETURN_IF_ERROR(stored);
  return SendDesiredSets();
}

}  // namespace sft::server
