#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/state/records.h"

// Which nodes keep failing gangs. A pure function of the failures that blame a node.

namespace sft::server::sched {

// How failures weigh.
struct ScoreRules {
  // A node is left out from the failure that brings its score here...
  double out_at = 2.5;
  // ... until it has decayed to this.
  double back_at = 1;
  int64_t half_life_us = int64_t{1800} * 1'000'000;
};

// A node's standing now.
struct NodeScore {
  double score = 0;
  bool left_out = false;
  int64_t back_us = 0;  // when it comes back, if it is left out and nothing more happens
  std::string reason;   // for a person; empty unless it is left out
};

// `faults` are of one node, oldest first. Each failure counts 1 and halves every half_life; one job
// counts at most once in a half-life, so that a job that fails everywhere does not take every node
// along.
NodeScore ScoreOf(std::span<const NodeFault> faults, int64_t now_us, const ScoreRules& rules);

}  // namespace sft::server::sched
