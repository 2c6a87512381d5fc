#include "worker/engine/train/best_tracker.h"

#include <cmath>

namespace sft::engine {

bool BestTracker::Add(int64_t step, double metric) {
  const double gain = best_ ? (greater_ ? metric - *best_ : *best_ - metric) : INFINITY;
  const bool better = gain > 0;
  without_gain_ = better && gain > threshold_ ? 0 : without_gain_ + 1;
  if (better) {
    best_ = metric;
    best_step_ = step;
  }
  return better;
}

void BestTracker::Restore(std::optional<double> best, int64_t best_step, int64_t without_gain) {
  best_ = best;
  best_step_ = best_step;
  without_gain_ = without_gain;
}

}  // namespace sft::engine
