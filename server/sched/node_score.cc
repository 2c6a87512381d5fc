#include "server/sched/node_score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/base/clock.h"

namespace sft::server::sched {
namespace {

// What is left of failures that are no reason any more.
constexpr double kForgotten = 0.25;

double Decayed(double score, int64_t elapsed_us, const ScoreRules& rules) {
  // A wall clock that went back must not make failures weigh more.
  const double halves = static_cast<double>(std::max<int64_t>(0, elapsed_us)) /
                        static_cast<double>(rules.half_life_us);
  return score * std::exp2(-halves);
}

}  // namespace

NodeScore ScoreOf(std::span<const NodeFault> faults, int64_t now_us, const ScoreRules& rules) {
  NodeScore result;
  std::map<std::string, int64_t> counted;  // job → when it counted last
  std::map<std::string, int> codes;
  int64_t at_us = 0;
  for (const NodeFault& fault : faults) {
    const auto last = counted.find(fault.job_id);
    if (last != counted.end() && fault.time_us - last->second < rules.half_life_us) continue;
    counted[fault.job_id] = fault.time_us;
    result.score = Decayed(result.score, fault.time_us - at_us, rules);
    if (result.score <= rules.back_at) result.left_out = false;
    if (result.score < kForgotten) codes.clear();
    at_us = fault.time_us;
    result.score += 1;
    ++codes[fault.code];
    if (result.score >= rules.out_at) result.left_out = true;
  }
  const double peak = result.score;
  result.score = Decayed(result.score, now_us - at_us, rules);
  if (result.score <= rules.back_at) result.left_out = false;
  if (!result.left_out) return result;
  result.back_us = at_us + static_cast<int64_t>(std::log2(peak / rules.back_at) *
                                                static_cast<double>(rules.half_life_us));
  std::string list;
  for (const auto& [code, count] : codes) {
    list += fmt::format("{}{} x {}", list.empty() ? "" : ", ", count, code);
  }
  result.reason = fmt::format("left out until {}: jobs keep failing on it ({})",
                              FormatUtc(FromUnixMicros(result.back_us)), list);
  return result;
}

}  // namespace sft::server::sched
