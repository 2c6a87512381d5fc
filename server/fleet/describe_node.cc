#include "server/fleet/describe_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "server/core/access.h"
#include "server/core/convert.h"
#include "server/fleet/node_health.h"
#include "server/fleet/node_holds.h"

namespace sft::server {
namespace {

// Empty when the node's clock is fine, or not reported.
std::string ClockProblem(std::optional<double> offset) {
  const std::chrono::duration<double> apart(std::abs(offset.value_or(0)));
  if (apart <= Access::kMaxClockSkew) return "";
  return fmt::format("its clock is {} min {} the server's: set the wrong one",
                     std::chrono::duration_cast<std::chrono::minutes>(apart).count(),
                     *offset > 0 ? "ahead of" : "behind");
}

}  // namespace

absl::StatusOr<NodeContext> ReadNodeContext(Database& db, const WorkerRegistry& registry) {
  NodeContext context;
  SFT_ASSIGN_OR_RETURN(context.scores, NodeScores(db, registry.now_us(), registry.options().score));
  SFT_ASSIGN_OR_RETURN(context.holds, store::Holds(db));
  SFT_ASSIGN_OR_RETURN(context.facts, store::AllFacts(db));
  return context;
}

namespace {

// The NVLink cluster that all its GPUs are in, if that goes over several nodes.
std::string FabricOf(const v1::NodeFacts& facts) {
  // Prefix of GPU groups that belong to one node only.
  constexpr std::string_view kOfOneNode = "nvlink-";
  if (facts.links().empty()) return "";
  const std::string& domain = facts.links(0).domain();
  const bool same = std::all_of(facts.links().begin(), facts.links().end(),
                                [&](const v1::SlotLinks& slot) { return slot.domain() == domain; });
  return same && !domain.starts_with(kOfOneNode) ? domain : "";
}

}  // namespace

std::string PlaceOf(const v1::NodeFacts& facts) {
  const std::string fabric = FabricOf(facts);
  const char* const between = facts.place().empty() || fabric.empty() ? "" : "/";
  return facts.place() + between + fabric;
}

absl::StatusOr<v1::Node> DescribeNode(Database& db, const NodeRecord& node,
                                      const NodeContext& context, const WorkerRegistry& registry) {
  const WorkerRegistry::Live live = registry.Get(node.name);
  v1::Node view = ToProto(node);
  if (live.last_seen != WallTime()) {
    *view.mutable_last_seen() = ToTimestamp(UnixMicros(live.last_seen));
  }
  if (!live.connected && view.reason().empty()) view.set_reason("not connected now");
  if (view.reason().empty()) view.set_reason(ClockProblem(live.clock_offset));
  if (const auto score = context.scores.find(node.name); score != context.scores.end()) {
    view.set_left_out(score->second.reason);
  }
  const auto hold = context.holds.find(node.name);
  if (hold != context.holds.end()) {
    SFT_ASSIGN_OR_RETURN(*view.mutable_hold(), ToProto(db, hold->second));
  }
  view.set_unusable(WhyUnusable(node, live, hold == context.holds.end() ? nullptr : &hold->second));
  if (view.unusable().empty()) view.set_unusable(WhyResting(context.scores, node.name, live));
  if (live.disk.level() != v1::NodeDisk::LEVEL_UNSPECIFIED) *view.mutable_disk() = live.disk;
  view.set_rival(live.rival);
  if (live.clock_offset.has_value()) view.set_clock_offset_seconds(*live.clock_offset);
  if (const auto facts = context.facts.find(node.name); facts != context.facts.end()) {
    // Written by this server; if it cannot be parsed it is not shown.
    if (!view.mutable_facts()->ParseFromString(facts->second.facts)) view.clear_facts();
    view.mutable_facts()->set_rank_build(live.rank_build);
    *view.mutable_first_seen() = ToTimestamp(facts->second.first_seen_us);
  }
  for (v1::Slot& slot : *view.mutable_slots()) {
    const auto use = live.use.find(slot.index());
    if (use == live.use.end()) continue;
    slot.set_memory_used_bytes(use->second.first);
    slot.set_utilization_percent(use->second.second);
  }
  for (const v1::Slot& reported : live.observed.slots()) {
    for (v1::Slot& slot : *view.mutable_slots()) {
      if (slot.index() != reported.index()) continue;
      slot.set_power_watts(reported.power_watts());
      slot.set_temperature_celsius(reported.temperature_celsius());
    }
  }
  return view;
}

}  // namespace sft::server
