#include "server/fleet/node_health.h"

#include <algorithm>

#include "server/store/checkpoints.h"

namespace sft::server {
namespace {

// Half-lives after which a failure has no weight.
constexpr int64_t kRemembered = 12;
constexpr int64_t kEarlyUs = 60'000'000;

bool IsEarly(const NodeFault& fault) {
  return fault.lived_us >= 0 && fault.lived_us < kEarlyUs && fault.step == 0;
}

}  // namespace

absl::StatusOr<std::map<std::string, sched::NodeScore>> NodeScores(Database& db, int64_t now_us,
                                                                   const sched::ScoreRules& rules) {
  SFT_ASSIGN_OR_RETURN(std::vector<NodeFault> faults,
                       store::NodeFaults(db, now_us - kRemembered * rules.half_life_us));
  for (NodeFault& fault : faults) fault.early = IsEarly(fault);
  std::map<std::string, sched::NodeScore> scores;
  for (auto begin = faults.begin(); begin != faults.end();) {
    const auto end = std::find_if(
        begin, faults.end(), [&](const NodeFault& fault) { return fault.node != begin->node; });
    scores[begin->node] = sched::ScoreOf({begin, end}, now_us, rules);
    begin = end;
  }
  return scores;
}

std::string WhyResting(const std::map<std::string, sched::NodeScore>& scores,
                       const std::string& node, const WorkerRegistry::Live& live) {
  const auto score = scores.find(node);
  if (score == scores.end()) return "";
  const auto& attempts = live.observed.attempts();
  const bool runs = std::any_of(attempts.begin(), attempts.end(), [](const auto& attempt) {
    return attempt.state() == v1::AttemptStatus::RUNNING;
  });
  return runs ? "" : score->second.resting;
}

}  // namespace sft::server
