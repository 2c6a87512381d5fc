#include "worker/engine/train/preference_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sft::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

Start OfMargin(double margin, double beta, double tokens, double pairs, bool fp32 = false) {
  return JudgeStart({margin, beta, tokens, pairs, fp32});
}

TEST(JudgeStartTest, RoundingOfLongAnswersIsNoWrongReference) {
  // 4000 tokens that differ by 0.03 each: 1.9 nats of a pair.
  EXPECT_EQ(OfMargin(0.19, 0.1, 4000, 1), Start::kAtReference);
  EXPECT_EQ(OfMargin(-0.19, 0.1, 4000, 1), Start::kAtReference);
  // Over many pairs they average out.
  EXPECT_EQ(OfMargin(0.19, 0.1, 4000, 64), Start::kAtReference);
  EXPECT_EQ(OfMargin(0.4, 0.1, 4000, 64), Start::kOdd);
  EXPECT_EQ(OfMargin(1.6, 0.1, 4000, 1), Start::kOdd);
  // 0.1 nats in every token.
  EXPECT_EQ(OfMargin(41, 0.1, 4000, 64), Start::kWrong);
  EXPECT_EQ(OfMargin(0.05, 0.1, 10, 64), Start::kAtReference);
  EXPECT_EQ(OfMargin(0.2, 0.1, 10, 64), Start::kWrong);
}

TEST(JudgeStartTest, InFp32MarginsAreExactByTheirScale) {
  EXPECT_EQ(OfMargin(9e-4, 0.1, 100, 1, true), Start::kAtReference);
  EXPECT_EQ(OfMargin(2e-3, 0.1, 100, 1, true), Start::kWrong);
  EXPECT_EQ(OfMargin(9e-3, 10, 100, 1, true), Start::kAtReference);
  EXPECT_EQ(OfMargin(2e-2, 10, 100, 1, true), Start::kWrong);
}

// What is said in ten steps of one accuracy, then ninety of another.
std::string Said(spec::Loss loss, double first, double then) {
  AccuracyWatch watch(loss);
  std::string said;
  for (int step = 1; step <= 100; ++step) {
    const std::string now = watch.After(step, 100, step <= 10 ? first : then);
    if (said.empty()) said = now;
  }
  return said;
}

TEST(AccuracyWatchTest, ChanceIsOneHalfOnlyAgainstAReference) {
  EXPECT_THAT(Said(spec::Loss::kDpo, 0.4, 0.4), HasSubstr("chosen and rejected swapped"));
  EXPECT_EQ(Said(spec::Loss::kDpo, 0.6, 0.6), "");
  EXPECT_THAT(Said(spec::Loss::kKto, 0.4, 0.4), HasSubstr("labels swapped"));
  EXPECT_THAT(Said(spec::Loss::kKto, 0.4, 0.4), Not(HasSubstr("chosen")));
  for (const spec::Loss loss : {spec::Loss::kOrpo, spec::Loss::kSimPo}) {
    EXPECT_EQ(Said(loss, 0.2, 0.2), "") << "longer answers are often the chosen ones";
    EXPECT_EQ(Said(loss, 0.2, 0.9), "");
    EXPECT_THAT(Said(loss, 0.8, 0.5), HasSubstr("in the first steps in 80 %"));
  }
}

TEST(ImbalanceTest, ASideThatIsMissingIsSaidAsSuch) {
  EXPECT_EQ(ImbalanceText(10, 10, 1, 1), "");
  EXPECT_THAT(ImbalanceText(40, 10, 1, 1), HasSubstr("count 4.00 times as much"));
  EXPECT_EQ(ImbalanceText(40, 10, 1, 4), "");
  EXPECT_THAT(ImbalanceText(40, 0, 1, 1), HasSubstr("40 good answers and no bad ones"));
  EXPECT_THAT(ImbalanceText(0, 40, 1, 1), HasSubstr("40 bad answers and no good ones"));
  EXPECT_EQ(ImbalanceText(40, 10, 1, 0), "");
}

}  // namespace
}  // namespace sft::engine
