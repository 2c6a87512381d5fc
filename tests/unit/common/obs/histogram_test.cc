#include "common/obs/histogram.h"

#include <gtest/gtest.h>

namespace sft::obs {
namespace {

TEST(HistogramTest, ABoundBelongsToItsBucketAndWhatIsBeyondCountsInAll) {
  constexpr double kBounds[] = {1, 2.5};
  Histogram histogram(kBounds);
  for (const double value : {0.0, 1.0, 1.5, 2.5, 2.6, 100.0}) histogram.Observe(value);
  const Histogram::Counts counts = histogram.Read();
  EXPECT_EQ(counts.bounds, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(counts.cumulative, (std::vector<int64_t>{2, 4, 6}));
  EXPECT_DOUBLE_EQ(counts.sum, 107.6);
}

}  // namespace
}  // namespace sft::obs
