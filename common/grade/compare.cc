#include "common/grade/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace sft::grade {
namespace {

// The resample's value of one model; nothing where its rows say nothing.
class Sample {
 public:
  Sample(const Metric& metric, size_t width) : metric_(metric), sums_(width) {}
  void Clear() { std::fill(sums_.begin(), sums_.end(), 0.0); }
  void Add(const double* row) {
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += row[i];
  }
  std::optional<double> Value() const { return ValueOf(metric_, sums_); }

 private:
  const Metric& metric_;
  std::vector<double> sums_;
};

// By linear interpolation, as numpy's percentile; `sorted` is not empty.
double Percentile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

std::vector<double> Differences(const Metric& metric, const std::vector<PairedSums>& rows,
                                int resamples, uint64_t seed) {
  // One behind the other: a resample reads all rows in any order.
  const size_t width = metric.sums;
  std::vector<double> flat;
  flat.reserve(2 * width * rows.size());
  for (const PairedSums& row : rows) {
    flat.insert(flat.end(), row.base.begin(), row.base.end());
    flat.insert(flat.end(), row.tuned.begin(), row.tuned.end());
  }
  std::mt19937_64 generator(seed);
  Sample base(metric, metric.sums), tuned(metric, metric.sums);
  std::vector<double> differences;
  for (int i = 0; i < resamples; ++i) {
    base.Clear();
    tuned.Clear();
    for (size_t k = 0; k < rows.size(); ++k) {
      // Distributions of the standard library differ between libraries.
      const auto row = static_cast<size_t>(generator() % rows.size());
      const double* sums = flat.data() + 2 * width * row;
      base.Add(sums);
      tuned.Add(sums + width);
    }
    const auto before = base.Value(), after = tuned.Value();
    if (before && after && std::isfinite(*after - *before)) differences.push_back(*after - *before);
  }
  std::sort(differences.begin(), differences.end());
  return differences;
}

}  // namespace

double McNemar(int64_t a, int64_t b) {
  const int64_t n = a + b;
  if (n == 0) return 1;
  const auto count = static_cast<double>(n);
  double tail = 0;
  for (int64_t k = 0; k <= std::min(a, b); ++k) {
    const auto part = static_cast<double>(k);
    tail += std::exp(std::lgamma(count + 1) - std::lgamma(part + 1) -
                     std::lgamma(count - part + 1) - count * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

Comparison Compare(const Metric& metric, const std::vector<PairedSums>& rows, int resamples,
                   uint64_t seed) {
  Comparison result;
  result.rows = static_cast<int64_t>(rows.size());
  Sample base(metric, metric.sums), tuned(metric, metric.sums);
  for (const PairedSums& row : rows) {
    base.Add(row.base.data());
    tuned.Add(row.tuned.data());
    if (metric.kind != MetricKind::kPass) continue;
    result.only_base += row.base[0] > row.tuned[0] ? 1 : 0;
    result.only_tuned += row.tuned[0] > row.base[0] ? 1 : 0;
  }
  if (metric.kind == MetricKind::kPass) {
    result.mcnemar_p = McNemar(result.only_base, result.only_tuned);
  }
  if (rows.empty()) return result;
  result.base = base.Value();
  result.tuned = tuned.Value();
  if (!result.base || !result.tuned) return result;
  result.difference = *result.tuned - *result.base;
  const std::vector<double> differences = Differences(metric, rows, resamples, seed);
  if (differences.empty() || rows.size() == 1) {
    result.low = result.high = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  result.low = Percentile(differences, 0.025);
  result.high = Percentile(differences, 0.975);
  const auto not_above = std::upper_bound(differences.begin(), differences.end(), 0.0);
  const auto not_below = std::lower_bound(differences.begin(), differences.end(), 0.0);
  const double smaller = static_cast<double>(
      std::min(not_above - differences.begin(), differences.end() - not_below) + 1);
  result.p = std::min(1.0, 2 * smaller / static_cast<double>(differences.size() + 1));
  result.p = std::max(result.p, std::exp2(1 - static_cast<double>(rows.size())));
  return result;
}

}  // namespace sft::grade
