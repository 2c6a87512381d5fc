#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/state/job_state.h"
#include "tests/sim/chance.h"
#include "tests/sim/disk.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/invariants.h"
#include "tests/sim/sim_node.h"
#include "tests/sim/sim_operator.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_user.h"

namespace sft::sim {

// Kinds of fault, each of which heals after a while.
enum class Fault {
  kServerKilled,
  kServerLosesPower,
  kServerStopped,  // SIGSTOP
  kServerDiskFull,
  kServerClockJumps,
  kWorkerKilled,
  kNodeClockJumps,
  kMachineReboots,
  kNetworkCut,
  kNetworkSlow,
  kAnswersLost,
  kRankKilled,
  kRankHangs,
  kRankStuck,  // not even SIGKILL ends it
  kShimKilled,
  kNodeDiskFull,  // from some write on
  kNodeDiskLost,  // with the checkpoints on it; the machine is restarted for it
  // By the operator (FleetChange), beside the others.
  kNodeDrained,
  kNodeRemoved,
  kNodeReplaced,
};
inline constexpr int kFaults = 20;
std::string_view ToString(Fault fault);

// Bugs that a simulation can have planted, one for each invariant, to show that it is caught.
enum class Planted {
  kNone,
  kSlotsFreedEarly,    // while ranks still live
  kAttemptLeftBehind,  // the job counts on while it lives
  kMemberLost,
  kDiskLies,  // a commit is acknowledged before it is durable
  kFinalStateChanged,
  kReasonDropped,  // a job waits for ever and does not say so
  kLogBytesSwapped,
  kAttemptsForgotten,  // its number goes back
  kAttemptKept,        // after the end of its job
};

struct SimulationOptions {
  uint64_t seed = 1;
  Planted planted = Planted::kNone;
  int64_t least_events = 1000;
  bool trace = false;         // print every action as it happens
  bool fleet_changes = true;  // an operator drains, removes and replaces nodes
};

struct SimulationResult {
  std::vector<Violation> violations;
  std::string trace;  // the last actions before the first violation
  int64_t events = 0;
  int jobs = 0;
  std::array<int, kFaults> faults{};
  std::set<std::pair<server::JobState, server::JobState>> edges;
  std::map<std::string, int> outcomes;  // final states
};

// Three machines, a server, a user, an operator and faults, all from one seed, in one thread.
// Everything that is broken heals in the end; then every job must end and nothing be held.
SimulationResult Simulate(const SimulationOptions& options);

}  // namespace sft::sim
