#pragma once

#include <algorithm>
#include <chrono>
#include <random>

#include "common/base/clock.h"
#include "common/base/random.h"

namespace sft::worker {

// Exponential backoff: the wait doubles from `first` up to `max`, and each wait is shortened at
// random by up to a half, so that the workers of a fleet do not come back all at once.
// Thread-compatible.
class Backoff {
 public:
  Backoff(Nanos first, Nanos max)
      : first_(first), max_(max), next_(first), random_(RandomWord()) {}

  Nanos Next() {
    const double share = std::uniform_real_distribution<double>(0.5, 1.0)(random_);
    const Nanos wait = std::chrono::duration_cast<Nanos>(next_ * share);
    next_ = std::min(next_ * 2, max_);
    return wait;
  }
  // Call after a success.
  void Reset() { next_ = first_; }

 private:
  const Nanos first_;
  const Nanos max_;
  Nanos next_;
  std::minstd_rand random_;
};

}  // namespace sft::worker
