#include "worker/attempt/straggler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sft::worker {
namespace {

double Millis(Nanos time) { return std::chrono::duration<double, std::milli>(time).count(); }

// The lower one of two in the middle.
Nanos Median(std::vector<Nanos> others) {
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>((others.size() - 1) / 2);
  std::nth_element(others.begin(), middle, others.end());
  return *middle;
}

}  // namespace

std::vector<StragglerWatch::Straggler> StragglerWatch::Look(const std::vector<RankLook>& ranks) {
  std::vector<Straggler> found;
  if (ranks.size() < 2) return found;
  std::map<int64_t, std::vector<Nanos>> times;  // of a step, in the order of `ranks`
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].flight) return found;
    for (const channel::FlightStep& step : ranks[i].flight->steps) {
      std::vector<Nanos>& row = times[step.step];
      if (row.size() == i) row.push_back(step.own);
    }
  }
  for (const auto& [step, row] : times) {
    if (step <= seen_ || row.size() != ranks.size()) continue;
    seen_ = step;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const int rank = ranks[i].rank;
      std::vector<Nanos> of_others;
      for (size_t other = 0; other < ranks.size(); ++other) {
        if (other != i && Alike(rank, ranks[other].rank)) of_others.push_back(row[other]);
      }
      if (of_others.empty()) continue;
      const Nanos others = Median(std::move(of_others));
      const bool slow =
          row[i] - others > options_.least && Millis(row[i]) > options_.factor * Millis(others);
      slow_[rank] = slow ? slow_[rank] + 1 : 0;
      steady_[rank] = slow ? 0 : steady_[rank] + 1;
      if (steady_[rank] >= options_.steps) reported_.erase(rank);
      if (slow_[rank] >= options_.steps && reported_.insert(rank).second) {
        found.push_back({rank, ranks[i].place, step, row[i], others});
      }
    }
  }
  return found;
}

std::string Describe(const StragglerWatch::Straggler& straggler, const std::string& node) {
  return fmt::format(
      "rank {}{} of {} is slow: {:.0f} ms of its own in step {}, the other ranks {:.0f} ms",
      straggler.rank, straggler.place.empty() ? "" : " on " + straggler.place, node,
      Millis(straggler.own), straggler.step, Millis(straggler.others));
}

}  // namespace sft::worker
