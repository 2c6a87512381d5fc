#include "server/fleet/node_holds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/bytes.h"
#include "server/core/convert.h"
#include "server/fleet/node_events.h"
#include "server/store/nodes.h"
#include "server/store/webhook_events.h"

namespace sft::server {
namespace {

// The most node names listed in the error for a mistyped one.
constexpr int kNamesTold = 20;

absl::Status CheckNode(Database& db, const std::string& name) {
  SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, name));
  if (known) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeRecord> nodes,
                       store::ListNodes(db, "", kNamesTold + 1));
  std::string names;
  for (size_t i = 0; i < nodes.size() && i < kNamesTold; ++i) {
    names += (i == 0 ? "" : ", ") + nodes[i].name;
  }
  if (nodes.size() > kNamesTold) names += ", and more (`sftctl nodes`)";
  return NotFound(fmt::format("no node \"{}\"; there {}: {}", name,
                              nodes.size() == 1 ? "is" : "are", names.empty() ? "none" : names));
}

std::string DiskText(const v1::NodeDisk& disk) {
  return fmt::format("nearly out of disk: {} of {} free, its mark is {}",
                     BytesText(disk.free_bytes()), BytesText(disk.total_bytes()),
                     BytesText(disk.full_bytes()));
}

}  // namespace

std::string HoldText(const store::NodeHold& hold) {
  return fmt::format("{} by {}{}", hold.mode == store::HoldMode::kDrain ? "drained" : "cordoned",
                     hold.who, hold.reason.empty() ? "" : ": " + hold.reason);
}

absl::Status HoldNode(Database& db, const store::NodeHold& hold) {
  SFT_RETURN_IF_ERROR(CheckNode(db, hold.node));
  SFT_RETURN_IF_ERROR(store::PutHold(db, hold));
  SFT_RETURN_IF_ERROR(store::TellNode(db, "node.held", hold.node, hold.reason, hold.since_us));
  return NoteNodeEvent(db, hold.node, hold.mode == store::HoldMode::kDrain ? "drained" : "cordoned",
                       "by " + hold.who + (hold.reason.empty() ? "" : ": " + hold.reason),
                       hold.since_us);
}

absl::Status ReleaseNode(Database& db, const std::string& node, const std::string& who,
                         int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
  if (!holds.contains(node)) return CheckNode(db, node);
  SFT_RETURN_IF_ERROR(store::DeleteHold(db, node));
  return NoteNodeEvent(db, node, "released", "by " + who, now_us);
}

absl::Status RemoveNode(Database& db, const std::string& node, const WorkerRegistry::Live& live,
                        bool force, const std::string& who, int64_t now_us) {
  const absl::Status known = CheckNode(db, node);
  if (absl::IsNotFound(known) && store::GetNode(db, node).ok()) return store::RemoveNode(db, node);
  SFT_RETURN_IF_ERROR(known);
  if (live.connected) {
    return FailedPrecondition(
        fmt::format("node {} is connected: end its sft-worker first (`sftctl drain {}` empties it)",
                    node, node));
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, store::JobsOnNode(db, node));
  if (!jobs.empty() && !force) {
    return FailedPrecondition(
        fmt::format("{} may still run on node {}: wait until compute.unreachable_after has passed, "
                    "or say that the machine is off (--force): then what ran there is placed again",
                    fmt::join(jobs, ", "), node));
  }
  SFT_RETURN_IF_ERROR(store::RemoveNode(db, node));
  return NoteNodeEvent(db, node, "removed", "by " + who, now_us);
}

absl::StatusOr<bool> MoveOffDrained(Database& db, Ages& ages, int64_t now_us,
                                    ChangedJobs& changed) {
  bool later = false;
  SFT_ASSIGN_OR_RETURN(const auto holds, store::Holds(db));
  for (const auto& [node, hold] : holds) {
    if (hold.mode != store::HoldMode::kDrain || hold.move_us == 0) continue;
    const std::string key = fmt::format("drain of {} since {}", node, hold.since_us);
    if (ages.Of(key, hold.since_us) < hold.move_us - hold.since_us) {
      later = true;
      continue;
    }
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> attempts, store::AttemptsOnNode(db, node));
    const std::string reason = fmt::format("moved: {} is {}", node, HoldText(hold));
    for (const std::string& attempt : attempts) {
      SFT_RETURN_IF_ERROR(StopAttempt(db, attempt, kMoved, reason, now_us, changed));
    }
  }
  return later;
}

std::string WhyUnusable(const NodeRecord& node, const WorkerRegistry::Live& live,
                        const store::NodeHold* hold) {
  if (!live.connected || live.silent) {
    return node.state == NodeState::kSuspect
               ? fmt::format("silent since {}", FormatUtc(FromUnixMicros(node.last_seen_us)))
               : "not connected now";
  }
  if (!live.leaving.empty()) return "leaving: " + live.leaving;
  if (hold != nullptr) return HoldText(*hold);
  if (live.disk.level() == v1::NodeDisk::FULL) return DiskText(live.disk);
  if (!live.rank_problem.empty()) return "not able to start ranks: " + live.rank_problem;
  return "";
}

absl::StatusOr<v1::NodeHold> ToProto(Database& db, const store::NodeHold& hold) {
  v1::NodeHold proto;
  proto.set_mode(static_cast<v1::NodeHold::Mode>(hold.mode));
  proto.set_reason(hold.reason);
  proto.set_who(hold.who);
  *proto.mutable_time() = ToTimestamp(hold.since_us);
  if (hold.move_us > 0) *proto.mutable_move_time() = ToTimestamp(hold.move_us);
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> jobs, store::JobsOnNode(db, hold.node));
  for (const std::string& job : jobs) proto.add_jobs(job);
  return proto;
}

}  // namespace sft::server
