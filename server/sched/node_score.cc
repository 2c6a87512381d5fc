#include "server/sched/node_score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "common/base/clock.h"

namespace sft::server::sched {
namespace {

// Below this score old failures are no longer given as a reason.
constexpr double kForgotten = 0.25;

// "2 x rank_killed, 1 x gpu_lost"
std::string ListOf(const std::map<std::string, int>& codes) {
  std::string list;
  for (const auto& [code, count] : codes) {
    list += fmt::format("{}{} x {}", list.empty() ? "" : ", ", count, code);
  }
  return list;
}

double Decayed(double score, int64_t elapsed_us, const ScoreRules& rules) {
  // A wall clock that was set back must not make failures weigh more.
  const double halves = static_cast<double>(std::max<int64_t>(0, elapsed_us)) /
                        static_cast<double>(rules.half_life_us);
  return score * std::exp2(-halves);
}

// Failures further apart than this, beside the rest between them, are not in a row: other attempts
// have trained meanwhile, or none was tried.
constexpr int64_t kRowUs = int64_t{600} * 1'000'000;
constexpr int kMaxDoublings = 20;

std::string RestOf(std::span<const NodeFault> faults, int64_t now_us, const ScoreRules& rules) {
  int row = 0;
  int64_t last_us = 0, rest_us = 0;
  std::set<std::string> jobs;
  std::map<std::string, int> codes;
  for (const NodeFault& fault : faults) {
    if (!fault.early || fault.time_us - last_us > kRowUs + rest_us) {
      row = 0;
      rest_us = 0;
      jobs.clear();
      codes.clear();
    }
    if (!fault.early) continue;
    last_us = fault.time_us;
    ++row;
    jobs.insert(fault.job_id);
    ++codes[fault.code];
    if (row < rules.rest_after || jobs.size() < 2) continue;
    const int doublings = std::min(row - rules.rest_after, kMaxDoublings);
    rest_us = std::min(rules.first_rest_us << doublings, rules.max_rest_us);
  }
  // A wall clock that was set back must not prolong the rest.
  if (rest_us == 0 || now_us >= last_us + rest_us || now_us < last_us - rest_us) return "";
  return fmt::format("resting until {}: {} attempts in a row failed on it before they trained ({})",
                     FormatUtc(FromUnixMicros(last_us + rest_us)), row, ListOf(codes));
}

}  // namespace

NodeScore ScoreOf(std::span<const NodeFault> faults, int64_t now_us, const ScoreRules& rules) {
  NodeScore result;
  result.resting = RestOf(faults, now_us, rules);
  std::map<std::string, int64_t> counted;  // job → time at which it last counted
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
  result.reason = fmt::format("left out until {}: jobs keep failing on it ({})",
                              FormatUtc(FromUnixMicros(result.back_us)), ListOf(codes));
  return result;
}

}  // namespace sft::server::sched
