#pragma once

#include <map>
#include <string>

#include "server/database/sqlite.h"
#include "server/fleet/worker_registry.h"
#include "server/sched/node_score.h"

namespace sft::server {

// Failure scores of the nodes that failed jobs lately, by name. Inside a transaction of the store.
absl::StatusOr<std::map<std::string, sched::NodeScore>> NodeScores(Database& db, int64_t now_us,
                                                                   const sched::ScoreRules& rules);

// Why the node rests. Empty if it does not, or if ranks run on it now, which proves that it can
// start them.
std::string WhyResting(const std::map<std::string, sched::NodeScore>& scores,
                       const std::string& node, const WorkerRegistry::Live& live);

}  // namespace sft::server
