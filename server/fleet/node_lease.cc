#include "server/fleet/node_lease.h"

#include <fmt/format.h>

#include "server/fleet/node_events.h"
#include "server/fleet/node_holds.h"
#include "server/fleet/worker_registry.h"
#include "server/gangs/node_checks.h"
#include "server/store/attempts.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

// When the lease of a node ends that this server has not heard since its start, by the worker's
// clock; nullopt: it has none.
absl::StatusOr<std::optional<int64_t>> StoredEnd(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(const std::string stored, store::FactsOf(db, node));
  v1::NodeFacts facts;
  if (!facts.ParseFromString(stored) || !facts.has_lease()) return std::optional<int64_t>();
  return std::optional<int64_t>(facts.lease().end_us());
}

absl::StatusOr<std::string> WhyGone(Database& db, const std::string& node,
                                    const WorkerRegistry::Live& live, int64_t now_us) {
  if (live.connected) return live.leaving;
  if (!live.silent) return std::string();
  SFT_ASSIGN_OR_RETURN(std::optional<int64_t> end_us, StoredEnd(db, node));
  if (!end_us.has_value()) return std::string();
  if (live.lease.has_value()) end_us = live.lease->end_us;
  if (*end_us > 0 && *end_us <= now_us) return std::string("its allocation has ended");
  return std::string(live.silent_for > kLostAfter ? "its worker has ended or is cut off" : "");
}

// True while something of an attempt is on the node: of a connected one also what is over, as the
// node still has to be told to forget it.
absl::StatusOr<bool> IsBusy(Database& db, const std::string& node,
                            const WorkerRegistry::Live& live) {
  if (live.connected) {
    SFT_ASSIGN_OR_RETURN(const auto held, store::HeldMembers(db, node));
    return !held.empty() || !live.observed.attempts().empty();
  }
  SFT_ASSIGN_OR_RETURN(const auto attempts, store::AttemptsOnNode(db, node));
  return !attempts.empty();
}

// What the operator is told of a hold that outlasts the node; empty: there is none.
absl::StatusOr<std::string> HeldText(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
  const auto hold = holds.find(node);
  if (hold == holds.end()) return std::string();
  return fmt::format("; should it come again, it is still {} (`sftctl nodes resume {}` ends that)",
                     HoldText(hold->second), node);
}

}  // namespace

std::string NodeLease::WhyLeaving(int64_t now_us) const {
  if (!leaving.empty()) return leaving;
  if (end_us == 0 || now_us < jobs_until_us()) return "";
  return fmt::format("{} ends at {}", allocation.empty() ? "its allocation" : allocation,
                     FormatUtc(FromUnixMicros(end_us)));
}

std::optional<NodeLease> LeaseOf(const v1::Register& message, int64_t now_us) {
  if (!message.facts().has_lease()) return std::nullopt;
  const v1::Lease& said = message.facts().lease();
  NodeLease lease;
  const int64_t ahead_us = message.time_us() == 0 ? 0 : message.time_us() - now_us;
  if (said.end_us() > 0) lease.end_us = said.end_us() - ahead_us;
  lease.lead_us = said.lead_seconds() * kSecondUs;
  lease.allocation = BoundedText(said.allocation());
  lease.leaving = BoundedText(message.leaving());
  return lease;
}

absl::Status MoveOffLeaving(Database& db, const WorkerRegistry& registry,
                            const std::vector<NodeRecord>& nodes, int64_t now_us,
                            ChangedJobs& changed) {
  for (const NodeRecord& node : nodes) {
    const WorkerRegistry::Live live = registry.Get(node.name);
    if (live.leaving.empty()) continue;
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> attempts,
                         store::AttemptsOnNode(db, node.name));
    const std::string reason =
        fmt::format("moved: {} leaves the fleet: {}", node.name, live.leaving);
    for (const std::string& attempt : attempts) {
      SFT_RETURN_IF_ERROR(StopAttempt(db, attempt, kMoved, reason, now_us, changed));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> RemoveLeft(Database& db, const WorkerRegistry& registry,
                                                    std::vector<NodeRecord>& nodes,
                                                    int64_t now_us) {
  std::vector<std::string> dismissed;
  for (auto node = nodes.begin(); node != nodes.end();) {
    const WorkerRegistry::Live live = registry.Get(node->name);
    SFT_ASSIGN_OR_RETURN(const std::string why, WhyGone(db, node->name, live, now_us));
    SFT_ASSIGN_OR_RETURN(const bool busy,
                         why.empty() ? absl::StatusOr<bool>(true) : IsBusy(db, node->name, live));
    if (busy) {
      ++node;
      continue;
    }
    const int64_t heard_us = live.last_seen == WallTime() ? 0 : UnixMicros(live.last_seen);
    SFT_RETURN_IF_ERROR(store::LetNodeGo(db, node->name, heard_us));
    SFT_ASSIGN_OR_RETURN(const std::string held, HeldText(db, node->name));
    SFT_RETURN_IF_ERROR(
        NoteNodeEvent(db, node->name, "removed", "it has left: " + why + held, now_us));
    if (live.connected) dismissed.push_back(node->name);
    node = nodes.erase(node);
  }
  return dismissed;
}

}  // namespace sft::server
