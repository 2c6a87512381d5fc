#include "server/fleet/node_events.h"

#include <fmt/format.h>

#include <map>

#include "server/store/feed.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

// "8 x H100, 2 x CPU"
std::string SlotsText(const std::vector<SlotRecord>& slots) {
  std::map<std::string, int> counts;
  for (const SlotRecord& slot : slots) ++counts[slot.gpu_type];
  std::string text;
  for (const auto& [type, count] : counts) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, type);
  }
  return text.empty() ? "no slots" : text;
}

}  // namespace

absl::Status NoteNodeEvent(Database& db, const std::string& node, const std::string& type,
                           const std::string& message, int64_t now_us) {
  store::FeedEvent event;
  event.time_us = now_us;
  event.subject = "nodes/" + node;
  event.type = type;
  event.message = message;
  return store::FeedOther(db, event);
}

absl::Status NoteRegistered(Database& db, const NodeRecord& node, int64_t now_us) {
  SFT_RETURN_IF_ERROR(NoteSlots(db, node.name, node.slots, now_us));
  const absl::StatusOr<NodeRecord> before = store::GetNode(db, node.name);
  if (!before.ok() && !absl::IsNotFound(before.status())) return before.status();
  if (before.ok() && before->incarnation == node.incarnation) {
    if (before->state != NodeState::kSuspect) return absl::OkStatus();
    return NoteNodeEvent(db, node.name, "up", "its worker has connected again", now_us);
  }
  return NoteNodeEvent(db, node.name, "registered",
                       fmt::format("{}, sft-worker {} on host {}", SlotsText(node.slots),
                                   node.version, node.hostname),
                       now_us);
}

absl::Status NoteSlots(Database& db, const std::string& node, const std::vector<SlotRecord>& slots,
                       int64_t now_us) {
  const absl::StatusOr<NodeRecord> before = store::GetNode(db, node);
  if (absl::IsNotFound(before.status())) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(before.status());
  std::map<int, bool> was_healthy;
  for (const SlotRecord& slot : before->slots) was_healthy[slot.index] = slot.healthy;
  for (const SlotRecord& slot : slots) {
    const auto known = was_healthy.find(slot.index);
    if (known == was_healthy.end() || known->second == slot.healthy) continue;
    const std::string what = slot.healthy                 ? "is healthy again"
                             : slot.health_reason.empty() ? "is not healthy"
                                                          : "is not healthy: " + slot.health_reason;
    SFT_RETURN_IF_ERROR(
        NoteNodeEvent(db, node, "slots",
                      fmt::format("slot {} ({}) {}", slot.index, slot.gpu_type, what), now_us));
  }
  return absl::OkStatus();
}

}  // namespace sft::server
