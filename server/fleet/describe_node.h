#pragma once

#include <map>
#include <string>

#include "server/database/sqlite.h"
#include "server/fleet/worker_registry.h"
#include "server/sched/node_score.h"
#include "server/state/records.h"
#include "server/store/node_holds.h"
#include "sft/v1/node.pb.h"

// Builds the description of a node that operators see: its row plus the state of its live stream,
// failures of jobs, and holds by operators. Inside a transaction of the store.

namespace sft::server {

// State of all nodes, read once for a list of them.
struct NodeContext {
  std::map<std::string, sched::NodeScore> scores;
  std::map<std::string, store::NodeHold> holds;
  std::map<std::string, store::NodeFacts> facts;
};
absl::StatusOr<NodeContext> ReadNodeContext(Database& db, const WorkerRegistry& registry);

// Where a node is (sched/places.h): the place that its operator says and, as its narrowest part,
// the NVLink cluster of several nodes that all of its GPUs belong to. Empty: not known.
std::string PlaceOf(const v1::NodeFacts& facts);

absl::StatusOr<v1::Node> DescribeNode(Database& db, const NodeRecord& node,
                                      const NodeContext& context, const WorkerRegistry& registry);

}  // namespace sft::server
