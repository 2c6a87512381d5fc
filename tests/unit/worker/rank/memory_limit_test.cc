#include "worker/rank/memory_limit.h"

#include <gtest/gtest.h>

namespace sft::rank {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemoryLimitTest, FollowsTheDataUpToHalfOfTheNode) {
  const auto choose = [](int64_t data) {
    return ChooseMemoryLimit(0, data, /*total=*/64 * kGiB, /*available=*/60 * kGiB);
  };
  EXPECT_EQ(choose(0).bytes, 4 * kGiB);
  EXPECT_EQ(choose(kGiB / 64).bytes, 8 * kGiB);
  EXPECT_EQ(choose(kGiB).bytes, 32 * kGiB);
  EXPECT_FALSE(choose(kGiB).of_node);
}

TEST(MemoryLimitTest, TheOperatorsFigureCountsAlone) {
  EXPECT_EQ(ChooseMemoryLimit(50 * kGiB, 1, 64 * kGiB, 60 * kGiB).bytes, 50 * kGiB);
}

TEST(MemoryLimitTest, WhatANodeLacksIsTheNodes) {
  const MemoryLimit limit = ChooseMemoryLimit(0, 0, 64 * kGiB, 2 * kGiB);
  EXPECT_TRUE(limit.of_node);
  EXPECT_LT(limit.bytes, 2 * kGiB);
  EXPECT_EQ(ChooseMemoryLimit(0, 0, 64 * kGiB, 0).bytes, kGiB) << "too little to begin with";
}

}  // namespace
}  // namespace sft::rank
