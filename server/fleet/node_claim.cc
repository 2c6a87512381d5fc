#include "server/fleet/node_claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/base/plain_text.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

// Replaced incarnations that are remembered. A worker that restarts again and again must not fill
// the row; one that still exists retries every few seconds and so is among the newest.
constexpr int kReplacedKept = 32;
constexpr char kReplaced[] = "sft/replaced-worker";

bool HasPlace(const v1::DataDirPlace& place) { return place.inode() != 0; }

// True when two claims are of one data folder. A disk's number may change with each boot or mount,
// and a container may get another machine id with each start: either may differ where the inode,
// the path and the host are the same. On a copy the inode differs, on a clone of a volume the disk
// and the host.
bool IsSamePlace(const Claim& a, const Claim& b) {
  if (a.place.inode() != b.place.inode()) return false;
  const bool machine = a.place.machine() == b.place.machine();
  const bool device = a.place.device() == b.place.device();
  if (machine && device) return true;
  return (machine || device) && a.place.path() == b.place.path() && a.hostname == b.hostname;
}

// "1a2b3c4d on host h7 with /var/lib/sft-worker"
std::string Describe(const Claim& claim) {
  std::string text = fmt::format("{} on host {}", Plain(claim.incarnation.substr(0, 8), 8),
                                 Plain(claim.hostname, 80));
  if (!claim.place.path().empty()) text += " with " + Plain(claim.place.path(), 200);
  return text;
}

// Written by this server; if it cannot be parsed it is treated as empty.
absl::StatusOr<v1::NodeFacts> ReadFacts(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(const std::string stored, store::FactsOf(db, node));
  v1::NodeFacts facts;
  if (!facts.ParseFromString(stored)) facts.Clear();
  return facts;
}

std::string HowToEnd(const std::string& node) {
  return fmt::format(
      "Stop one of the two; one that shall be a node of its own gets an empty --data-dir and "
      "another --node than {}",
      node);
}

absl::Status Replaced(const std::string& node, const Claim& holder, int64_t since_us) {
  absl::Status status = FailedPrecondition(fmt::format(
      "another worker with this node's data folder has taken over as {}: incarnation {}, since "
      "{}. {}. If this one is the right one, start it again when the other is stopped",
      node, Describe(holder), FormatUtc(FromUnixMicros(since_us)), HowToEnd(node)));
  status.SetPayload(kReplaced, absl::Cord("1"));
  return status;
}

}  // namespace

Claim ClaimOf(const v1::Register& message) {
  return {message.incarnation(), message.hostname(), message.data_dir_id(),
          message.facts().data_dir()};
}

absl::StatusOr<Claim> StoredClaim(Database& db, const std::string& node) {
  SFT_ASSIGN_OR_RETURN(const bool known, store::HasNode(db, node));
  if (!known) return NotFound(fmt::format("no node {}", node));
  SFT_ASSIGN_OR_RETURN(const NodeRecord stored, store::GetNode(db, node));
  SFT_ASSIGN_OR_RETURN(const v1::NodeFacts facts, ReadFacts(db, node));
  return Claim{stored.incarnation, stored.hostname, stored.data_dir_id, facts.data_dir()};
}

absl::Status CheckTakeOver(const v1::Register& newcomer, const Claim& holder, Nanos suspect_after) {
  // Workers of earlier versions do not report the id or the place of their data folder.
  const bool is_same_id = holder.data_dir_id.empty() || newcomer.data_dir_id().empty()
                              ? holder.hostname == newcomer.hostname()
                              : holder.data_dir_id == newcomer.data_dir_id();
  const Claim claim = ClaimOf(newcomer);
  const bool is_copy =
      is_same_id && HasPlace(holder.place) && HasPlace(claim.place) && !IsSamePlace(holder, claim);
  if (is_same_id && !is_copy) return absl::OkStatus();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(suspect_after).count();
  if (!is_copy) {
    return AlreadyExists(fmt::format(
        "node name {} is in use by another worker, on host {}: give this worker another --node "
        "(one with a new data folder is let in {} s after the other was last heard)",
        newcomer.node(), holder.hostname, seconds));
  }
  return AlreadyExists(fmt::format(
      "this worker's data folder is a copy, or was moved: node {} is the worker {}, which was "
      "heard "
      "less than {} s ago. {}. Where there is no other, this one only has to wait: it is let in {} "
      "s after the other was last heard",
      newcomer.node(), Describe(holder), seconds, HowToEnd(newcomer.node()), seconds));
}

absl::Status CheckNotReplaced(Database& db, const v1::Register& message) {
  const absl::StatusOr<Claim> holder = StoredClaim(db, message.node());
  if (absl::IsNotFound(holder.status())) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(holder.status());
  SFT_ASSIGN_OR_RETURN(const v1::NodeFacts stored, ReadFacts(db, message.node()));
  for (const v1::ReplacedWorker& replaced : stored.replaced()) {
    if (replaced.incarnation() == message.incarnation()) {
      return Replaced(message.node(), *holder, replaced.time_us());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::NodeFacts> TakeOver(Database& db, const v1::Register& message, int64_t now_us) {
  SFT_RETURN_IF_ERROR(CheckNotReplaced(db, message));
  v1::NodeFacts facts = message.facts();
  facts.clear_replaced();
  const absl::StatusOr<Claim> holder = StoredClaim(db, message.node());
  if (absl::IsNotFound(holder.status())) return facts;
  SFT_RETURN_IF_ERROR(holder.status());
  SFT_ASSIGN_OR_RETURN(const v1::NodeFacts stored, ReadFacts(db, message.node()));
  *facts.mutable_replaced() = stored.replaced();
  if (holder->incarnation == message.incarnation()) return facts;
  if (facts.replaced_size() >= kReplacedKept) facts.mutable_replaced()->DeleteSubrange(0, 1);
  v1::ReplacedWorker& replaced = *facts.add_replaced();
  replaced.set_incarnation(holder->incarnation);
  replaced.set_time_us(now_us);
  return facts;
}

bool WasReplaced(const absl::Status& status) { return status.GetPayload(kReplaced).has_value(); }

std::string RivalText(const v1::Register& refused, WallTime now) {
  return fmt::format("another worker came as node {} at {} and was refused: incarnation {}. {}",
                     refused.node(), FormatUtc(now), Describe(ClaimOf(refused)),
                     HowToEnd(refused.node()));
}

}  // namespace sft::server
