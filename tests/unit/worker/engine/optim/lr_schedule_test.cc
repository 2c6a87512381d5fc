#include "worker/engine/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using spec::LrScheduler;

TEST(LrScheduleTest, WarmsUpFromTheFirstStepToThePeak) {
  for (const auto kind : {LrScheduler::kConstant, LrScheduler::kLinear, LrScheduler::kCosine}) {
    const LrSchedule schedule({kind}, 2e-4, 0.25, 10);
    ASSERT_EQ(schedule.warmup_steps(), 3);
    EXPECT_DOUBLE_EQ(schedule.At(1), 2e-4 / 3);
    EXPECT_DOUBLE_EQ(schedule.At(2), 2e-4 * 2 / 3);
    EXPECT_DOUBLE_EQ(schedule.At(3), 2e-4);
    EXPECT_DOUBLE_EQ(schedule.At(4), 2e-4);
  }
}

TEST(LrScheduleTest, WarmupStepsAreRoundedUpButNotByFloatingPointNoise) {
  EXPECT_EQ(LrSchedule({LrScheduler::kLinear}, 1, 0.03, 100).warmup_steps(), 3);
  EXPECT_EQ(LrSchedule({LrScheduler::kLinear}, 1, 0.07, 100).warmup_steps(), 7);
  EXPECT_EQ(LrSchedule({LrScheduler::kLinear}, 1, 0.03, 101).warmup_steps(), 4);
  EXPECT_EQ(LrSchedule({LrScheduler::kLinear}, 1, 0.0, 100).warmup_steps(), 0);
  EXPECT_EQ(LrSchedule({LrScheduler::kLinear}, 1, 1.0, 5).warmup_steps(), 5);
}

TEST(LrScheduleTest, DecaysAsTransformersAfterTheWarmup) {
  // get_{linear,cosine}_schedule_with_warmup(num_warmup_steps=2, num_training_steps=10) at the
  // optimizer's 3rd, 7th and 10th step.
  const LrSchedule linear({LrScheduler::kLinear}, 1, 0.2, 10),
      cosine({LrScheduler::kCosine}, 1, 0.2, 10);
  EXPECT_DOUBLE_EQ(linear.At(3), 1.0);
  EXPECT_DOUBLE_EQ(linear.At(7), 0.5);
  EXPECT_DOUBLE_EQ(linear.At(10), 0.125);
  EXPECT_DOUBLE_EQ(cosine.At(3), 1.0);
  EXPECT_NEAR(cosine.At(7), 0.5, 1e-15);
  EXPECT_NEAR(cosine.At(10), 0.03806023374435663, 1e-15);
}

TEST(LrScheduleTest, IsZeroPastTheEndAndConstantStays) {
  EXPECT_EQ(LrSchedule({LrScheduler::kLinear}, 1, 0, 10).At(11), 0);
  EXPECT_EQ(LrSchedule({LrScheduler::kLinear}, 1, 0, 10).At(100), 0);
  EXPECT_NEAR(LrSchedule({LrScheduler::kCosine}, 1, 0, 10).At(100), 0, 1e-16);
  EXPECT_EQ(LrSchedule({LrScheduler::kConstant}, 1, 0, 10).At(100), 1);
}

TEST(LrScheduleTest, AWarmupOverTheWholeRunEndsAtThePeak) {
  const LrSchedule schedule({LrScheduler::kCosine}, 3, 1.0, 4);
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.75);
  EXPECT_DOUBLE_EQ(schedule.At(4), 3);
}

TEST(LrScheduleTest, AWarmupInStepsGoesBeforeTheRatio) {
  const LrSchedule schedule({.kind = LrScheduler::kLinear, .warmup_steps = 4}, 1, 0.5, 20);
  EXPECT_EQ(schedule.warmup_steps(), 4);
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.25);
  EXPECT_DOUBLE_EQ(schedule.At(5), 1);
  EXPECT_DOUBLE_EQ(schedule.At(6), 1 - 1.0 / 16);
  // Longer than the run: the peak is not reached.
  EXPECT_DOUBLE_EQ(LrSchedule({.warmup_steps = 8}, 1, 0, 4).At(4), 0.5);
}

TEST(LrScheduleTest, RestartsAtThePeakAfterEachCycle) {
  const LrSchedule schedule({.kind = LrScheduler::kCosineWithRestarts, .num_cycles = 2}, 1, 0, 8);
  EXPECT_DOUBLE_EQ(schedule.At(1), 1);
  EXPECT_NEAR(schedule.At(3), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ(schedule.At(5), 1);
  EXPECT_EQ(schedule.At(9), 0);
}

TEST(LrScheduleTest, ThePolynomialEndsAtItsEndAndTheInverseRootNowhere) {
  const LrSchedule polynomial({.kind = LrScheduler::kPolynomial, .power = 2, .end = 0.1}, 1, 0, 4);
  EXPECT_DOUBLE_EQ(polynomial.At(1), 1);
  EXPECT_DOUBLE_EQ(polynomial.At(3), 0.9 * 0.25 + 0.1);
  EXPECT_DOUBLE_EQ(polynomial.At(5), 0.1);
  EXPECT_DOUBLE_EQ(polynomial.At(50), 0.1);
  const LrSchedule root({.kind = LrScheduler::kInverseSqrt, .warmup_steps = 4}, 1, 0, 10);
  EXPECT_DOUBLE_EQ(root.At(5), 1);
  EXPECT_DOUBLE_EQ(root.At(17), 0.5);
}

TEST(LrScheduleTest, TheCosineWithALeastRateEndsThere) {
  const LrSchedule ratio({.kind = LrScheduler::kCosineWithMinLr, .min_ratio = 0.1}, 2, 0, 8);
  EXPECT_DOUBLE_EQ(ratio.At(1), 2);
  EXPECT_DOUBLE_EQ(ratio.At(5), 1.1);
  EXPECT_DOUBLE_EQ(ratio.At(9), 0.2);
  EXPECT_DOUBLE_EQ(ratio.At(90), 0.2);
  const LrSchedule rate({.kind = LrScheduler::kCosineWithMinLr, .min = 0.2}, 2, 0, 8);
  EXPECT_EQ(rate.At(7), ratio.At(7));
}

TEST(LrScheduleTest, StaysAtThePeakUntilTheLastSteps) {
  const LrSchedule share({.kind = LrScheduler::kWarmupStableDecay, .decay = spec::LrDecay::kLinear},
                         1, 0.1, 40);
  EXPECT_DOUBLE_EQ(share.At(2), 0.5);
  for (const int64_t step : {4, 5, 36, 37}) EXPECT_DOUBLE_EQ(share.At(step), 1) << step;
  EXPECT_DOUBLE_EQ(share.At(38), 0.75);
  EXPECT_DOUBLE_EQ(share.At(40), 0.25);
  EXPECT_EQ(share.At(41), 0);
  const LrSchedule least({.kind = LrScheduler::kWarmupStableDecay,
                          .min_ratio = 0.2,
                          .decay_steps = 4,
                          .decay = spec::LrDecay::kOneMinusSqrt},
                         1, 0.1, 40);
  EXPECT_DOUBLE_EQ(least.At(2), 0.6);  // from the least rate, not from 0
  EXPECT_DOUBLE_EQ(least.At(38), 0.6);
  EXPECT_DOUBLE_EQ(least.At(41), 0.2);
  EXPECT_DOUBLE_EQ(least.At(400), 0.2);
}

// More steps of decay than there are: it begins behind the warm-up.
TEST(LrScheduleTest, ADecayLongerThanTheRunBeginsAtThePeak) {
  const LrSchedule schedule({.kind = LrScheduler::kWarmupStableDecay,
                             .warmup_steps = 2,
                             .decay_steps = 100,
                             .decay = spec::LrDecay::kLinear},
                            1, 0, 6);
  EXPECT_DOUBLE_EQ(schedule.At(3), 1);
  EXPECT_DOUBLE_EQ(schedule.At(6), 0.25);
  // Nothing but the warm-up.
  EXPECT_DOUBLE_EQ(
      LrSchedule({.kind = LrScheduler::kWarmupStableDecay, .warmup_steps = 8}, 1, 0, 4).At(4), 0.5);
}

TEST(LrScheduleTest, RefusesNumbersThatNoJobMayHave) {
  EXPECT_THROW(LrSchedule({.warmup_steps = -1}, 1, 0, 10), InternalError);
  EXPECT_THROW(LrSchedule({.num_cycles = 0}, 1, 0, 10), InternalError);
  EXPECT_THROW(LrSchedule({.power = 0}, 1, 0, 10), InternalError);
  EXPECT_THROW(LrSchedule({.min = -1}, 1, 0, 10), InternalError);
  EXPECT_THROW(LrSchedule({.min_ratio = 1.5}, 1, 0, 10), InternalError);
  EXPECT_THROW(LrSchedule({.decay_steps = -1}, 1, 0, 10), InternalError);
}

TEST(LrScheduleTest, RefusesAnEmptyRunAndARatioOutsideItsRange) {
  EXPECT_THROW(LrSchedule({LrScheduler::kLinear}, 1, 0, 0), InternalError);
  EXPECT_THROW(LrSchedule({LrScheduler::kLinear}, 1, 1.5, 10), InternalError);
  EXPECT_THROW(LrSchedule({LrScheduler::kLinear}, 1, std::nan(""), 10), InternalError);
}

}  // namespace
}  // namespace sft::engine
