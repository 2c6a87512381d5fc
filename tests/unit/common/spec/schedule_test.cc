#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

const JobSpec::Hyperparameters& Of(const Resolution& r) { return r.spec.hyperparameters; }

TEST(ScheduleTest, EveryScheduleIsReadWithItsNumbers) {
  const Resolution restarts =
      ResolveText(Minimal("[train]\nlr_scheduler_type = \"cosine_with_restarts\"\n"
                          "lr_scheduler_kwargs = { num_cycles = 3 }"));
  ASSERT_TRUE(restarts.ok()) << Describe(restarts.problems);
  EXPECT_EQ(Of(restarts).lr_scheduler.kind, LrScheduler::kCosineWithRestarts);
  EXPECT_EQ(Of(restarts).lr_scheduler.num_cycles, 3);
  EXPECT_TRUE(restarts.warnings.empty()) << Describe(restarts.warnings);

  const Resolution polynomial = ResolveText(
      Minimal("[hyperparameters]\nlr_scheduler = \"polynomial\"\nlr_power = 2\nlr_end = 1e-6"));
  ASSERT_TRUE(polynomial.ok()) << Describe(polynomial.problems);
  EXPECT_EQ(Of(polynomial).lr_scheduler.kind, LrScheduler::kPolynomial);
  EXPECT_EQ(Of(polynomial).lr_scheduler.power, 2);
  EXPECT_EQ(Of(polynomial).lr_scheduler.end, 1e-6);

  EXPECT_EQ(Of(ResolveText(Minimal("[train]\nlr_scheduler = \"inverse_sqrt\""))).lr_scheduler.kind,
            LrScheduler::kInverseSqrt);
  EXPECT_EQ(Of(ResolveText(Minimal("[train]\nlr_scheduler = \"constant_with_warmup\"")))
                .lr_scheduler.kind,
            LrScheduler::kConstant);
}

TEST(ScheduleTest, LeastRatesAndDecaysAreReadByTransformersNames) {
  const Resolution rate =
      ResolveText(Minimal("[train]\nlr_scheduler_type = \"cosine_with_min_lr\"\n"
                          "lr_scheduler_kwargs = { min_lr = 1e-6 }"));
  ASSERT_TRUE(rate.ok()) << Describe(rate.problems);
  EXPECT_EQ(Of(rate).lr_scheduler.kind, LrScheduler::kCosineWithMinLr);
  EXPECT_EQ(Of(rate).lr_scheduler.min, 1e-6);
  EXPECT_TRUE(rate.warnings.empty()) << Describe(rate.warnings);

  const Resolution ratio =
      ResolveText(Minimal("[train]\nlr_scheduler_type = \"cosine_with_min_lr\"\n"
                          "lr_scheduler_kwargs = { min_lr_rate = 0.1 }"));
  ASSERT_TRUE(ratio.ok()) << Describe(ratio.problems);
  EXPECT_EQ(Of(ratio).lr_scheduler.min_ratio, 0.1);

  const Resolution stable = ResolveText(
      Minimal("[train]\nlr_scheduler_type = \"warmup_stable_decay\"\n"
              "lr_scheduler_kwargs = { num_decay_steps = 50, min_lr_ratio = 0.2, decay_type = "
              "\"1-sqrt\" }"));
  ASSERT_TRUE(stable.ok()) << Describe(stable.problems);
  EXPECT_EQ(Of(stable).lr_scheduler.kind, LrScheduler::kWarmupStableDecay);
  EXPECT_EQ(Of(stable).lr_scheduler.min_ratio, 0.2);
  EXPECT_EQ(Of(stable).lr_scheduler.decay_steps, 50);
  EXPECT_EQ(Of(stable).lr_scheduler.decay, LrDecay::kOneMinusSqrt);
  EXPECT_TRUE(stable.warnings.empty()) << Describe(stable.warnings);
}

TEST(ScheduleTest, ATypedLeastRateReplacesTheFilesShare) {
  const Resolution r =
      ResolveText(Minimal("[train]\nlr_scheduler = \"cosine_with_min_lr\"\nlr_min_ratio = 0.1"),
                  {Set("lr_min", "1e-6")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(Of(r).lr_scheduler.min, 1e-6);
  EXPECT_EQ(Of(r).lr_scheduler.min_ratio, 0);
}

TEST(ScheduleTest, ANumberOfAnotherScheduleIsNamed) {
  const Resolution r =
      ResolveText(Minimal("[train]\nlr_scheduler = \"cosine\"\nlr_num_cycles = 3"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("lr_num_cycles:8: has no effect with"));
}

struct Warmup {
  std::string_view name;
  std::string_view text;
  std::vector<Override> overrides;
  int64_t steps;
  double ratio;
  std::string_view warns = "";

  friend void PrintTo(const Warmup& w, std::ostream* out) { *out << w.name; }
};

class WarmupTest : public ::testing::TestWithParam<Warmup> {};

TEST_P(WarmupTest, IsInStepsOrAShare) {
  const Warmup& w = GetParam();
  const Resolution r = ResolveText(Minimal("[train]\n" + std::string(w.text)), w.overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(Of(r).lr_scheduler.warmup_steps, w.steps);
  EXPECT_EQ(Of(r).warmup_ratio, w.ratio);
  EXPECT_EQ(r.warnings.empty(), w.warns.empty()) << Describe(r.warnings);
  EXPECT_THAT(Describe(r.warnings), HasSubstr(std::string(w.warns)));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WarmupTest,
    ::testing::Values(
        Warmup{"Neither", "", {}, 0, 0.03}, Warmup{"Ratio", "warmup_ratio = 0.1", {}, 0, 0.1},
        Warmup{"Steps", "warmup_steps = 100", {}, 100, 0.03},
        Warmup{"NoStepsIsNoWarmup", "warmup_steps = 0", {}, 0, 0},
        Warmup{"Share", "warmup_steps = 0.05", {}, 0, 0.05},
        Warmup{"NoStepsAndARatio", "warmup_steps = 0\nwarmup_ratio = 0.1", {}, 0, 0.1},
        Warmup{"StepsAndNoRatio", "warmup_steps = 5\nwarmup_ratio = 0.0", {}, 5, 0},
        Warmup{
            "StepsGoBeforeARatio",
            "warmup_ratio = 0.1\nwarmup_steps = 5",
            {},
            5,
            0.1,
            "warmup_ratio:7: has no effect: hyperparameters.warmup_steps = 5 (job.toml:8) counts"},
        Warmup{"TypedRatioOverSteps", "warmup_steps = 5", {Set("warmup_ratio", "0.2")}, 0, 0.2},
        Warmup{"TypedStepsOverARatio", "warmup_ratio = 0.2", {Set("warmup_steps", "7")}, 7, 0.03},
        Warmup{"VariableOverARatio", "warmup_ratio = 0.2", {Env("TRAIN_WARMUP_STEPS", "0")}, 0, 0}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ScheduleTest, AShareKeepsItsOrigin) {
  const Resolution r =
      ResolveText(Minimal("[train]\nwarmup_ratio = 0.2"), {Env("TRAIN_WARMUP_STEPS", "0.1")});
  EXPECT_EQ(TextOf(r, "hyperparameters.warmup_ratio"), "0.1");
  EXPECT_EQ(OriginOf(r, "hyperparameters.warmup_ratio"), "TRAIN_WARMUP_STEPS");
}

TEST(ScheduleTest, MinusOneStepIsNoLimit) {
  const Resolution r = ResolveText(Minimal("[train]\nmax_steps = -1"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(Of(r).max_steps, 0);
}

class ScheduleProblemTest : public ::testing::TestWithParam<WrongFile> {};

TEST_P(ScheduleProblemTest, IsOneProblemThatSaysWhatWouldBeRight) { ExpectOneProblem(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Cases, ScheduleProblemTest,
    ::testing::Values(
        WrongFile{"UnknownSchedule", "[train]\nlr_scheduler = \"greedy\"",
                  "hyperparameters.lr_scheduler",
                  "must be \"constant\", \"linear\", \"cosine\", \"cosine_with_restarts\", "
                  "\"polynomial\", \"inverse_sqrt\", \"cosine_with_min_lr\" or "
                  "\"warmup_stable_decay\", but "
                  "is \"greedy\""},
        WrongFile{"NoLeastRate", "[train]\nlr_scheduler = \"cosine_with_min_lr\"",
                  "hyperparameters.lr_scheduler", "needs lr_min, or lr_min_ratio"},
        WrongFile{"TwoLeastRates",
                  "[train]\nlr_scheduler = \"cosine_with_min_lr\"\nlr_min = 1e-6\n"
                  "lr_min_ratio = 0.1",
                  "hyperparameters.lr_min_ratio", "both say where the rate ends; keep one"},
        WrongFile{"LeastRateAboveThePeak",
                  "[train]\nlr_scheduler = \"wsd\"\nlearning_rate = 1e-5\nlr_min = 1e-4",
                  "hyperparameters.lr_min", "must be below it"},
        WrongFile{"HalfAStepOfDecay", "[train]\nlr_scheduler = \"wsd\"\nlr_decay_steps = 2.5",
                  "hyperparameters.lr_decay_steps", "or a share below 1, but is 2.5"},
        WrongFile{"HalfAStep", "[train]\nwarmup_steps = 10.5", "hyperparameters.warmup_steps",
                  "must be a whole number of steps, or a share below 1, but is 10.5"},
        WrongFile{"EndAboveThePeak",
                  "[train]\nlr_scheduler = \"polynomial\"\nlearning_rate = 1e-5\nlr_end = 1e-4",
                  "hyperparameters.lr_end", "must be below it"},
        WrongFile{"PeakBelowTheEnd", "[train]\nlr_scheduler = \"polynomial\"\nlearning_rate = 1e-8",
                  "hyperparameters.learning_rate", "falls from learning_rate = 1e-08"},
        WrongFile{"NoPower", "[train]\nlr_power = 0", "hyperparameters.lr_power", "above 0"},
        WrongFile{"NoCycle", "[train]\nlr_num_cycles = 0", "hyperparameters.lr_num_cycles",
                  "at least 1"},
        WrongFile{"MinusTwoSteps", "[train]\nmax_steps = -2", "hyperparameters.max_steps",
                  "at least -1"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
