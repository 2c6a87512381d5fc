#include "worker/node/rank_check.h"

#include <gtest/gtest.h>

namespace sft::worker {
namespace {

TEST(RankCheckTest, AFailureIsRetriedAndClearedWhenItWorks) {
  std::vector<absl::StatusOr<RankProgram>> answers = {
      FailedPrecondition("ranks cannot start: it was killed by signal 9"),
      RankProgram{"/torch/lib", "1.2.3 (build ab)"}};
  int asked = 0;
  RankCheck ranks([&] { return answers.at(asked++); });
  EXPECT_NE(ranks.Problem(), "") << "nothing may be placed before it is known";
  const Nanos next = ranks.Look();
  EXPECT_LE(next, std::chrono::seconds(2));
  EXPECT_GT(next, Nanos(0));
  EXPECT_EQ(ranks.Problem(), "ranks cannot start: it was killed by signal 9");
  EXPECT_FALSE(ranks.LibraryPath().ok());
  EXPECT_EQ(ranks.Build(), "");
  EXPECT_GT(ranks.Look(), std::chrono::hours(1));
  EXPECT_EQ(ranks.Problem(), "");
  EXPECT_EQ(ranks.LibraryPath().value(), "/torch/lib");
  EXPECT_EQ(ranks.Build(), "1.2.3 (build ab)");
  ranks.Look();
  EXPECT_EQ(asked, 2) << "what works is not asked again";
}

TEST(RankCheckTest, TheWaitsGrowToMinutes) {
  RankCheck ranks([]() -> absl::StatusOr<RankProgram> { return NotFound("no torch"); });
  Nanos last{0};
  for (int i = 0; i < 20; ++i) last = ranks.Look();
  EXPECT_GE(last, std::chrono::seconds(150));
  EXPECT_LE(last, std::chrono::minutes(5));
}

}  // namespace
}  // namespace sft::worker
