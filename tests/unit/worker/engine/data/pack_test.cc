#include "worker/engine/data/pack.h"

#include <gtest/gtest.h>

#include <numeric>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using Bins = std::vector<std::vector<uint32_t>>;

TEST(PackTest, TheLongestGoFirstIntoTheFirstBinWithRoom) {
  const std::vector<int64_t> lengths = {2, 5, 4, 7, 1, 3, 8};
  EXPECT_EQ(PackFirstFitDecreasing(lengths, 10), (Bins{{6, 0}, {3, 5}, {1, 2, 4}}));
}

TEST(PackTest, EveryItemIsInOneBinAndNoBinIsOverFull) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 1000; ++i) lengths.push_back(1 + (i * 7919) % 97);
  const Bins bins = PackFirstFitDecreasing(lengths, 100);
  std::vector<int> seen(lengths.size());
  int64_t total = 0;
  for (const auto& bin : bins) {
    int64_t used = 0;
    for (const uint32_t item : bin) {
      used += lengths[item];
      ++seen[item];
    }
    EXPECT_LE(used, 100);
    total += used;
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  EXPECT_LE(static_cast<double>(bins.size()), 11.0 / 9.0 * static_cast<double>(total) / 100 + 1);
}

TEST(PackTest, NothingGivesNoBinsAndAnItemTooLongIsAFault) {
  EXPECT_TRUE(PackFirstFitDecreasing({}, 10).empty());
  const std::vector<int64_t> lengths = {11};
  EXPECT_THROW(PackFirstFitDecreasing(lengths, 10), InternalError);
}

}  // namespace
}  // namespace sft::engine
