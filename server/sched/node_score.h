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
  // So many attempts of at least two jobs that fail in a row before they train let a node rest, and
  // each more for twice as long.
  int rest_after = 3;
  int64_t first_rest_us = int64_t{60} * 1'000'000;
  int64_t max_rest_us = int64_t{900} * 1'000'000;
};

// A node's standing now.
struct NodeScore {
  double score = 0;
  bool left_out = false;
  int64_t back_us = 0;  // when it comes back, if it is left out and nothing more happens
  std::string reason;   // for a person; empty unless it is left out
  // Not empty: it gets nothing for a while, not even what nothing else could hold.
  std::string resting;
};

// `faults` are of one node, oldest first. Each failure counts 1 and halves every half_life; one job
// counts at most once in a half-life, so that a job that fails everywhere does not take every node
// along. Who fails everything at once is not left out but rests: that fades in minutes, and what is
// wrong may be gone by then.
NodeScore ScoreOf(std::span<const NodeFault> faults, int64_t now_us, const ScoreRules& rules);

}  // namespace sft::server::sched
