#pragma once

#include <map>
#include <string>

#include "server/sched/node_score.h"
#include "server/store/sqlite.h"

namespace sft::server {

// The standing of the nodes that failed jobs lately, by name. Inside a transaction of the store.
absl::StatusOr<std::map<std::string, sched::NodeScore>> NodeScores(Database& db, int64_t now_us,
                                                                   const sched::ScoreRules& rules);

}  // namespace sft::server
