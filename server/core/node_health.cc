#include "server/core/node_health.h"

#include <algorithm>

#include "server/store/checkpoints.h"

namespace sft::server {
namespace {

// Half-lives after which a failure weighs nothing.
constexpr int64_t kRemembered = 12;

}  // namespace

absl::StatusOr<std::map<std::string, sched::NodeScore>> NodeScores(Database& db, int64_t now_us,
                                                                   const sched::ScoreRules& rules) {
  SFT_ASSIGN_OR_RETURN(const std::vector<NodeFault> faults,
                       store::NodeFaults(db, now_us - kRemembered * rules.half_life_us));
  std::map<std::string, sched::NodeScore> scores;
  for (auto begin = faults.begin(); begin != faults.end();) {
    const auto end = std::find_if(
        begin, faults.end(), [&](const NodeFault& fault) { return fault.node != begin->node; });
    scores[begin->node] = sched::ScoreOf({begin, end}, now_us, rules);
    begin = end;
  }
  return scores;
}

}  // namespace sft::server
