#include "server/scheduling/stuck_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "common/base/duration.h"
#include "server/gangs/gang_life.h"
#include "server/gangs/node_checks.h"
#include "server/resume/resume.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

// Time that a node may take to report a part it was given; then the reason is shown.
constexpr int64_t kTakesUpUs = 60'000'000;

std::string SilentText(const NodeRecord& node) {
  return fmt::format("silent since {}", FormatUtc(FromUnixMicros(node.last_seen_us)));
}

// What a node keeps retrying for an attempt, from its last report.
std::string RetryText(const WorkerRegistry& registry, const std::string& node,
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

// Why a job with an attempt makes no progress; empty if there is nothing to say. `is_news` tells
// whether an event is written.
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
    SFT_ASSIGN_OR_RETURN(const RestartRules rules, ReadRestartRules(db, live.job));
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
    std::string retried = RetryText(registry, member.status.node, live.attempt);
    if (!retried.empty()) return retried;
  }
  return live.attempt.state == AttemptState::kStopping ? live.attempt.reason : "";
}

}  // namespace

absl::StatusOr<std::vector<Explanation>> ExplainStuckJobs(Database& db,
                                                          const WorkerRegistry& registry,
                                                          const std::vector<LiveJob>& live_jobs,
                                                          const std::vector<NodeRecord>& all_nodes,
                                                          int64_t now_us) {
  std::map<std::string_view, const NodeRecord*> nodes;
  for (const NodeRecord& node : all_nodes) nodes[node.name] = &node;
  std::vector<Explanation> explanations;
  for (const LiveJob& live : live_jobs) {
    if (IsTerminal(live.attempt.state)) continue;
    bool is_news = false;
    SFT_ASSIGN_OR_RETURN(std::string reason, WhyStuck(db, registry, live, nodes, now_us, is_news));
    if (reason == live.job.reason) continue;
    explanations.push_back(
        {live.job.id, live.job.state, live.job.reason, std::move(reason), is_news});
  }
  return explanations;
}

bool HasLostParts(const std::vector<LiveJob>& live_jobs, const std::vector<NodeRecord>& nodes,
                  int64_t now_us) {
  for (const LiveJob& live : live_jobs) {
    for (const MemberRecord& member : live.members) {
      if (member.status.lost || member.status.state == MemberState::kDone) continue;
      if (IsNotTakenUp(member) && now_us - live.attempt.created_us > kTakesUpUs) return true;
      if (!std::ranges::binary_search(nodes, member.status.node, {}, &NodeRecord::name))
        return true;
    }
  }
  return false;
}

bool IsGivenUp(const WorkerRegistry::Live& live, const RestartRules& rules, Nanos margin) {
  const Nanos limit = std::chrono::microseconds(rules.unreachable_after_us);
  return rules.replace_unreachable && live.silent && live.silent_for > limit + margin;
}

bool IsNotTakenUp(const MemberRecord& member) { return !member.status.seen && !member.status.lost; }

}  // namespace sft::server
