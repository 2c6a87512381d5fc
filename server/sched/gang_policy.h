#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/version.h"

// First come, first served allocation of whole gangs. A pure function from a snapshot to actions:
// no clock, no store, the same answer for the same snapshot.

namespace sft::server::sched {

// A slot as the scheduler sees it.
struct SlotView {
  int index = 0;
  std::string gpu_type;
  bool healthy = true;
  std::string job;  // that holds it; empty: free
};

// A node as the scheduler sees it.
struct NodeView {
  std::string name;
  // Connected and not SUSPECT: work may be placed on it.
  bool usable = true;
  std::string unusable_reason;  // "silent for 40 s"
  // Not empty: jobs keep failing on it. It is used only where nothing else could hold a job.
  std::string left_out;
  bool has_shared = false;   // sees the shared folder
  int protocol = kProtocol;  // that its worker speaks
  std::vector<SlotView> slots;
  std::vector<std::string> models;  // ids and paths that it sees and can use
};

// What a waiting job asks for.
struct PendingJob {
  std::string id;
  std::string gpu_type;
  int gpus_per_node = 1;
  int nodes = 1;
  // Id under the nodes' model folders; empty: any node will do (a path is checked by the node).
  std::string model;
  // Where its checkpoint can be reached: these nodes in this order (empty: any), or those that see
  // the shared folder.
  std::vector<std::string> only_nodes;
  bool needs_shared = false;
  // The least that its workers have to speak, and what for: "checkpoint.save_strategy".
  int protocol = 1;
  std::string newer_keys;
  // Blamed for the last failure: taken last.
  std::string avoid_node;
};

// All that a decision depends on.
struct Snapshot {
  std::vector<NodeView> nodes;
  std::vector<PendingJob> pending;  // in order of submission
};

// Slots of one node.
struct Part {
  std::string node;
  std::vector<int> slots;
};

// All slots of a gang, in node rank order.
struct Placement {
  std::string job;
  std::vector<Part> parts;
};

// A job that stays pending.
struct Waiting {
  std::string job;
  std::string reason;  // for a person
};

// Every pending job is either placed or waits.
struct Decision {
  std::vector<Placement> placements;
  std::vector<Waiting> waiting;
};

// A job that waits keeps every later job off slots of its type, so that a stream of small jobs
// cannot starve a big one; jobs of other types pass. A job that the nodes at hand could never hold,
// even empty, keeps nobody waiting. Nodes with the fewest free slots left over are taken first, the
// one a job failed on last. A node that is left out is no candidate while enough others are.
Decision Decide(const Snapshot& snapshot);

// What the snapshot can say about a job that is not submitted yet: "could start now", or the reason
// it would wait for.
std::string Preview(const Snapshot& snapshot, const PendingJob& job);

}  // namespace sft::server::sched
