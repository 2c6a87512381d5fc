#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/state/records.h"

// Scores of nodes that keep failing gangs. A pure function of the failures that blame a node.

namespace sft::server::sched {

// Weights of failures.
struct ScoreRules {
  // A node is left out from the failure that raises its score to this...
  double out_at = 2.5;
  // ... until the score has decayed to this.
  double back_at = 1;
  int64_t half_life_us = int64_t{1800} * 1'000'000;
  // After this many attempts of at least two jobs in a row that fail before they train, a node
  // rests, and twice as long for each further one.
  int rest_after = 3;
  int64_t first_rest_us = int64_t{60} * 1'000'000;
  int64_t max_rest_us = int64_t{900} * 1'000'000;
};

// A node's score now.
struct NodeScore {
  double score = 0;
  bool left_out = false;
  int64_t back_us = 0;  // when it comes back, if it is left out and no further failure happens
  std::string reason;   // for a person; empty unless it is left out
  // If not empty, the node gets no work for a while, not even jobs that nothing else could hold.
  std::string resting;
};

// `faults` are those of one node, oldest first. Each failure counts 1 and halves every half_life;
// one job counts at most once per half-life, so that a job that fails everywhere does not take
// every node with it. A node that fails everything at once is not left out but rests: that expires
// in minutes, and the cause may be gone by then.
NodeScore ScoreOf(std::span<const NodeFault> faults, int64_t now_us, const ScoreRules& rules);

}  // namespace sft::server::sched
