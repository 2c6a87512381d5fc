#include "common/obs/histogram.h"

#include <algorithm>
#include <numeric>

namespace sft::obs {

void Histogram::Observe(double value) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  const MutexLock lock(mutex_);
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += value;
}

Histogram::Counts Histogram::Read() const {
  const MutexLock lock(mutex_);
  return Cumulated(bounds_, counts_, sum_);
}

Histogram::Counts Cumulated(std::span<const double> bounds, const std::vector<int64_t>& counts,
                            double sum) {
  Histogram::Counts read{{bounds.begin(), bounds.end()}, counts, sum};
  std::partial_sum(counts.begin(), counts.end(), read.cumulative.begin());
  return read;
}

}  // namespace sft::obs
