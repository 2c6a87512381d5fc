#pragma once

#include <map>
#include <string>

#include "server/database/sqlite.h"
#include "server/fleet/worker_registry.h"
#include "server/sched/node_score.h"
#include "server/state/records.h"
#include "server/store/node_holds.h"
#include "sft/v1/node.pb.h"

// A node as its operators see it: its row with what the live stream, the failures of jobs and the
// operators themselves say of it. Inside a transaction of the store.

namespace sft::server {

// What is known of all nodes, read once for a list of them.
struct NodeContext {
  std::map<std::string, sched::NodeScore> scores;
  std::map<std::string, store::NodeHold> holds;
  std::map<std::string, store::NodeFacts> facts;
};
absl::StatusOr<NodeContext> ReadNodeContext(Database& db, const WorkerRegistry& registry);

// The NVLink cluster that all GPUs of a node belong to, which reaches over other nodes; empty:
// none.
std::string FabricOf(const v1::NodeFacts& facts);

absl::StatusOr<v1::Node> DescribeNode(Database& db, const NodeRecord& node,
                                      const NodeContext& context, const WorkerRegistry& registry);

}  // namespace sft::server
