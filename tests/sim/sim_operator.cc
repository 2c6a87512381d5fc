#include "tests/sim/sim_operator.h"

#include "server/fleet/node_holds.h"

namespace sft::sim {
namespace {

using std::chrono::seconds;

constexpr seconds kTryAgain{3};
constexpr int kMostGpus = 4;

}  // namespace

absl::Status SimOperator::Call(const std::function<absl::Status(server::Database&)>& change) {
  if (!server_.answers()) return Unavailable("no server");
  return server_.process()->store->Write(change);
}

void SimOperator::ActLater() {
  events_.After(chance_.Between(seconds(5), seconds(60)), [this] {
    if (events_.now() > until_) return;
    SimNode& node = *chance_.Pick(nodes_);
    const Nanos lasts = chance_.Between(seconds(5), seconds(90));
    switch (static_cast<FleetChange>(chance_.Below(kFleetChanges))) {
      case FleetChange::kDrained:
        Drain(node, lasts);
        break;
      case FleetChange::kRemoved: {
        // Switched off before: nothing runs there any more.
        node.Kill();
        node.machine().Reboot();
        const bool force = chance_.OneIn(2);
        events_.After(chance_.Between(seconds(1), seconds(20)),
                      [this, &node, force, boots = node.boots()] { Remove(node, force, boots); });
        events_.After(lasts, [&node] { node.Boot(); });
        break;
      }
      case FleetChange::kReplaced:
        Replace(node, 1 + chance_.Below(kMostGpus));
        if (chance_.OneIn(2)) Remove(node, /*force=*/true, node.boots());
        events_.After(lasts, [&node] { node.Boot(); });
    }
    ActLater();
  });
}

void SimOperator::Drain(SimNode& node, Nanos lasts) {
  server::store::NodeHold hold{.node = node.name(), .reason = "maintenance", .who = "operator"};
  const bool drains = chance_.OneIn(2);
  hold.mode = drains ? server::store::HoldMode::kDrain : server::store::HoldMode::kCordon;
  const Nanos patience = chance_.Between(seconds(1), seconds(30));
  const absl::Status held = Call([&](server::Database& db) {
    hold.since_us = server_.process()->registry.now_us();
    if (drains) {
      hold.move_us =
          hold.since_us + std::chrono::duration_cast<std::chrono::microseconds>(patience).count();
    }
    return server::HoldNode(db, hold);
  });
  if (!held.ok()) return;
  done_(FleetChange::kDrained, node.name());
  events_.After(lasts, [this, name = node.name()] { Release(name); });
}

void SimOperator::Release(const std::string& node) {
  const absl::Status released = Call([&](server::Database& db) {
    return server::ReleaseNode(db, node, "ops", server_.process()->registry.now_us());
  });
  // A node that was removed has lost its hold.
  if (released.ok() || absl::IsNotFound(released)) return;
  events_.After(kTryAgain, [this, node] { Release(node); });
}

void SimOperator::Remove(SimNode& node, bool force, int boots) {
  // It has been on again, and what it began then may live: --force would be a lie.
  if (node.boots() != boots) return;
  const absl::Status removed = Call([&](server::Database& db) {
    const server::WorkerRegistry& registry = server_.process()->registry;
    return server::RemoveNode(db, node.name(), registry.Get(node.name()), force, "ops",
                              registry.now_us());
  });
  if (removed.ok()) return done_(FleetChange::kRemoved, node.name());
  events_.After(kTryAgain, [this, &node, force, boots] { Remove(node, force, boots); });
}

void SimOperator::Replace(SimNode& node, int gpus) {
  node.Kill();
  node.machine().Reboot();
  node.Refit(gpus);
  done_(FleetChange::kReplaced, node.name());
}

void SimOperator::Heal(int gpus) {
  for (const auto& node : nodes_) {
    Release(node->name());
    if (node->machine().gpus() < gpus) Replace(*node, gpus);
  }
}

}  // namespace sft::sim
