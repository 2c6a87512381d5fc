#include "worker/engine/kernels/batch_shape.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/base/round.h"

namespace sft::engine {
namespace {

TEST(BatchShapeTest, RoundedSizesAreNoSmallerKeptAndInOrder) {
  for (const auto round : {&RoundLongest, &RoundTokens, &RoundDocuments}) {
    for (int64_t n = 1; n < 20000; ++n) {
      const int64_t rounded = round(n);
      ASSERT_GE(rounded, n);
      ASSERT_EQ(round(rounded), rounded) << n;
      ASSERT_LE(rounded, round(n + 1)) << n;
    }
  }
}

TEST(BatchShapeTest, TokensGrowByAnEighthAtMost) {
  for (int64_t n = 512; n < 20000; ++n) ASSERT_LE((RoundTokens(n) - n) * 8, n) << n;
  EXPECT_EQ(RoundTokens(2048), 2048);
  EXPECT_EQ(RoundTokens(5 * 2048), 5 * 2048);
}

// The rounded length must tell which of the two implementations has the batch.
TEST(BatchShapeTest, ShortDocumentsStayShort) {
  for (int64_t n = 1; n < 1000; ++n) {
    EXPECT_EQ(RoundLongest(n) < kShortestForCudnn, n < kShortestForCudnn) << n;
  }
}

TEST(BatchShapeTest, OnlyDocumentsOfOneLengthAreExact) {
  EXPECT_EQ(ShapeOf({300, 300}), (BatchShape{600, 2, 300, false}));
  EXPECT_EQ(ShapeOf({300, 299}), (BatchShape{599, 2, 384, true}));
  EXPECT_EQ(ShapeOf({100, 100}), (BatchShape{200, 2, 128, true}));
  EXPECT_EQ(ShapeOf({}), BatchShape{});
}

}  // namespace
}  // namespace sft::engine
