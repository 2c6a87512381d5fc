#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "tests/sim/chance.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_server.h"

namespace sft::sim {

// What an operator does to the fleet.
enum class FleetChange {
  kDrained,   // or cordoned, and released after a while
  kRemoved,   // switched off and removed from the fleet; comes back after a while as it was
  kReplaced,  // comes back under its name as another machine: other GPUs, an empty disk
};
inline constexpr int kFleetChanges = 3;

// An operator, who drains, removes and replaces nodes, one after the other.
class SimOperator {
 public:
  using Nodes = std::vector<std::unique_ptr<SimNode>>;
  // All borrowed. Has a chance of its own, so that the rest of a simulation without an operator is
  // as before. `done` is told each change and its node.
  SimOperator(EventQueue& events, uint64_t seed, SimServer& server, Nodes& nodes, Nanos until,
              std::function<void(FleetChange, const std::string&)> done)
      : events_(events),
        chance_(seed),
        server_(server),
        nodes_(nodes),
        until_(until),
        done_(std::move(done)) {}

  // The first change is on its way.
  void Start() { ActLater(); }
  // Releases what is held, and sees to it that every node has `gpus` at least.
  void Heal(int gpus);

 private:
  void ActLater();
  void Drain(SimNode& node, Nanos lasts);
  void Release(const std::string& node);
  // `boots`: the node's when it was switched off.
  void Remove(SimNode& node, bool force, int boots);
  void Replace(SimNode& node, int gpus);
  // A call of the server; UNAVAILABLE while it does not answer.
  absl::Status Call(const std::function<absl::Status(server::Database&)>& change);

  EventQueue& events_;
  Chance chance_;
  SimServer& server_;
  Nodes& nodes_;
  const Nanos until_;
  const std::function<void(FleetChange, const std::string&)> done_;
};

}  // namespace sft::sim
