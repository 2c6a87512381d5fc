#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/mutex.h"

namespace sft::obs {

// Upper bounds of buckets of durations, in seconds: from what is answered from memory to what a
// client gives up on.
inline constexpr double kDurationBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                             0.25,  0.5,    1,     2.5,  5,     10,   60};

// Counts of observed values by bucket, as Prometheus' histograms have them. Thread-safe.
class Histogram {
 public:
  // As they are shown: of each bound the values up to it, then all values.
  struct Counts {
    std::vector<double> bounds;
    std::vector<int64_t> cumulative;  // one more than bounds
    double sum = 0;
  };

  // `bounds`: rising; the values beyond the last one have a bucket of their own.
  explicit Histogram(std::span<const double> bounds = kDurationBounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1, 0) {}

  void Observe(double value);
  Counts Read() const;

 private:
  const std::vector<double> bounds_;
  mutable Mutex mutex_;
  std::vector<int64_t> counts_ SFT_GUARDED_BY(mutex_);  // by bucket
  double sum_ SFT_GUARDED_BY(mutex_) = 0;
};

// `counts`: of each bucket alone, one more than bounds.
Histogram::Counts Cumulated(std::span<const double> bounds, const std::vector<int64_t>& counts,
                            double sum);

}  // namespace sft::obs
