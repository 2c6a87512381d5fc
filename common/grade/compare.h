#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/grade/metric.h"

namespace sft::grade {

// What a row added to a metric with each of two models; both are there, as only rows that both were
// graded on can be compared.
struct PairedSums {
  std::vector<double> base, tuned;
};

// A metric of two models over the same rows.
struct Comparison {
  int64_t rows = 0;
  std::optional<double> base, tuned;  // empty: the rows say nothing
  double difference = 0;              // tuned - base
  // The 2.5th and 97.5th percentile of the difference over resamples of the rows, and the two-sided
  // p-value: twice the smaller share of resamples on either side of no difference (a resample
  // without one is on both), counted with one more on each; never less than 2^(1 - rows), the least
  // that any test of so few pairs can say. One row has no interval (NaN), and p is 1.
  double low = 0, high = 0, p = 1;
  // For metrics that rows pass or fail: rows that only one of both passes, and McNemar's exact p.
  int64_t only_base = 0, only_tuned = 0;
  std::optional<double> mcnemar_p;
};

inline constexpr int kResamples = 10'000;

// Paired bootstrap over rows. The same rows, resamples and seed give the same numbers.
Comparison Compare(const Metric& metric, const std::vector<PairedSums>& rows,
                   int resamples = kResamples, uint64_t seed = 1);

// The two-sided exact binomial test of a fair coin: `a` of a + b.
double McNemar(int64_t a, int64_t b);

}  // namespace sft::grade
