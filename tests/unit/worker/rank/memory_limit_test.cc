#include "worker/rank/memory_limit.h"

#include <gtest/gtest.h>

#include "worker/engine/base/error.h"

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

TEST(MemoryLimitTest, LargeHonestDataAreNotRefusedForTheHalfOfTheNode) {
  // 3 to 20 bytes for each byte of data.
  const MemoryLimit limit = ChooseMemoryLimit(0, 3 * kGiB, 64 * kGiB, 100 * kGiB);
  EXPECT_EQ(limit.bytes, (4 + 3 * 24) * kGiB);
  EXPECT_FALSE(limit.of_node);
  const MemoryLimit short_of = ChooseMemoryLimit(0, 3 * kGiB, 64 * kGiB, 60 * kGiB);
  EXPECT_TRUE(short_of.of_node) << "the node's, and no fault of the data";
}

TEST(MemoryLimitTest, AnOverrunSaysWhatIsNeededAndHowToGetIt) {
  const auto told = [](const MemoryLimit& limit) {
    try {
      ThrowRefusedMemory(limit, "t.jsonl");
    } catch (const engine::Error& error) {
      return std::string(error.what()) + " | " + error.advice();
    }
  };
  const std::string raise = told(ChooseMemoryLimit(kGiB, kGiB, 64 * kGiB, 60 * kGiB));
  EXPECT_NE(raise.find("more than the 1.07 GB"), std::string::npos) << raise;
  EXPECT_NE(raise.find("up to 30.1 GB"), std::string::npos) << raise;
  EXPECT_NE(raise.find("--prepare-memory-gb 31"), std::string::npos) << raise;
  const std::string look = told(ChooseMemoryLimit(0, 1, 64 * kGiB, 60 * kGiB));
  EXPECT_NE(look.find("rows that are far too long"), std::string::npos) << look;
  EXPECT_NE(look.find("--prepare-memory-gb above 5"), std::string::npos) << look;
}

TEST(MemoryLimitTest, TheOperatorsFigureCountsAlone) {
  EXPECT_EQ(ChooseMemoryLimit(50 * kGiB, 1, 64 * kGiB, 60 * kGiB).bytes, 50 * kGiB);
}

TEST(MemoryLimitTest, AShortageOfTheNodeIsBlamedOnTheNode) {
  const MemoryLimit limit = ChooseMemoryLimit(0, 0, 64 * kGiB, 2 * kGiB);
  EXPECT_TRUE(limit.of_node);
  EXPECT_LT(limit.bytes, 2 * kGiB);
  EXPECT_EQ(ChooseMemoryLimit(0, 0, 64 * kGiB, 0).bytes, kGiB) << "too little to begin with";
}

}  // namespace
}  // namespace sft::rank
