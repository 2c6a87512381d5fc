#include "common/spec/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string_view name;
  int gpus;
  std::string_view keys;  // of [hyperparameters]
  std::vector<Override> overrides;
  int device, steps, global;
  bool warns;

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class BatchTest : public ::testing::TestWithParam<Case> {};

TEST_P(BatchTest, ResolvesToOneProduct) {
  const Case& c = GetParam();
  const Resolution r = ResolveText(Minimal("gpu_count = " + std::to_string(c.gpus) +
                                           "\n[hyperparameters]\n" + std::string(c.keys)),
                                   c.overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.per_device_batch, c.device);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, c.steps);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, c.global);
  EXPECT_EQ(!r.warnings.empty(), c.warns) << Describe(r.warnings);
}

const std::string kPrefix = "hyperparameters.";
INSTANTIATE_TEST_SUITE_P(
    Cases, BatchTest,
    ::testing::Values(
        Case{"NothingGiven", 2, "", {}, 4, 1, 8, false},
        Case{"DeviceAlone", 2, "per_device_batch = 3", {}, 3, 1, 6, false},
        Case{"StepsAlone", 2, "gradient_accumulation_steps = 5", {}, 4, 5, 40, false},
        Case{"GlobalAlone", 4, "global_batch = 64", {}, 4, 4, 64, false},
        Case{"GlobalBelowTheDefaultBatch", 4, "global_batch = 4", {}, 1, 1, 4, false},
        Case{"GlobalShareOfThree", 2, "global_batch = 6", {}, 3, 1, 6, false},
        Case{"DeviceAndGlobal", 4, "per_device_batch = 2\nglobal_batch = 32", {}, 2, 4, 32, false},
        Case{"StepsAndGlobal",
             4,
             "gradient_accumulation_steps = 4\nglobal_batch = 32",
             {},
             2,
             4,
             32,
             false},
        Case{"AllAgree",
             4,
             "per_device_batch = 1\ngradient_accumulation_steps = 16\nglobal_batch = 64",
             {},
             1,
             16,
             64,
             false},
        Case{"FileContradictsItself",
             8,
             "per_device_batch = 1\ngradient_accumulation_steps = 16\nglobal_batch = 64",
             {},
             1,
             8,
             64,
             true},
        Case{"AutoIsLeftOut",
             4,
             "per_device_batch = 2\ngradient_accumulation_steps = \"auto\"\nglobal_batch = 16",
             {},
             2,
             2,
             16,
             false},
        Case{"OverriddenStepsBeatTheFilesGlobal",
             4,
             "per_device_batch = 1\nglobal_batch = 64",
             {Env("TRAIN_GRAD_ACCUM", "32"), Env("TRAIN_BATCH_SIZE", "2")},
             2,
             32,
             256,
             true},
        Case{"OverriddenStepsAlone",
             4,
             "per_device_batch = 1\ngradient_accumulation_steps = 16\nglobal_batch = 64",
             {Env("TRAIN_GRAD_ACCUM", "32")},
             1,
             32,
             128,
             true},
        Case{"OverriddenDeviceKeepsGlobal",
             4,
             "per_device_batch = 1\ngradient_accumulation_steps = 16\nglobal_batch = 64",
             {Env("TRAIN_BATCH_SIZE", "4")},
             4,
             4,
             64,
             true},
        Case{"OverriddenCountKeepsGlobal",
             4,
             "per_device_batch = 1\ngradient_accumulation_steps = 16\nglobal_batch = 64",
             {Env("NUM_GPUS", "2")},
             1,
             32,
             64,
             true},
        Case{"OverriddenGlobal",
             4,
             "per_device_batch = 1\ngradient_accumulation_steps = 16\nglobal_batch = 64",
             {Set(kPrefix + "global_batch", "32")},
             1,
             8,
             32,
             true},
        Case{"OverriddenGlobalAndSteps",
             4,
             "per_device_batch = 1\ngradient_accumulation_steps = 16\nglobal_batch = 64",
             {Set(kPrefix + "global_batch", "64"),
              Set(kPrefix + "gradient_accumulation_steps", "4")},
             4,
             4,
             64,
             true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(AutoBatchTest, IsLeftToThePlanAndRoundTripsAsZero) {
  const Resolution r =
      ResolveText(Minimal("gpu_count = 2\n[hyperparameters]\nper_device_batch = \"auto\"\n"
                          "gradient_accumulation_steps = \"auto\"\n"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.per_device_batch, 0);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 0);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 32);  // 16 for each GPU
  for (const ResolvedValue& value : r.values) {
    if (value.key == "hyperparameters.per_device_batch" ||
        value.key == "hyperparameters.gradient_accumulation_steps") {
      EXPECT_EQ(value.text, "auto") << value.key;
    }
  }
}

TEST(AutoBatchTest, AGlobalBatchStandsAndAnAccumulationDividesIt) {
  const Resolution r =
      ResolveText(Minimal("gpu_count = 2\n[train]\nbatch_size = \"auto\"\ngrad_accum = 4\n"
                          "global_batch = 64\n"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.per_device_batch, 8);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 4);
}

TEST(AutoBatchTest, AnOverrideTakesTheFilesAccumulationAlong) {
  const Resolution r = ResolveText(Minimal("[hyperparameters]\nper_device_batch = 2\n"
                                           "gradient_accumulation_steps = 4\nglobal_batch = 8\n"),
                                   {{"per_device_batch", "auto", "--set", OverrideKind::kSet}});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.per_device_batch, 0);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 8);
}

TEST(AutoBatchTest, ACpuRankHasNoPlanAndGetsItsBatchAtOnce) {
  const Resolution r = ResolveText(
      "[job]\nmodel = \"m\"\ndata = \"d\"\n[compute]\ngpu_type = \"CPU\"\ngpu_count = 2\n"
      "[hyperparameters]\nper_device_batch = \"auto\"\nglobal_batch = 12\n");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.per_device_batch, 3);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 2);
}

TEST(AutoBatchTest, AnOpenOrIndivisibleBatchNamesItsKeys) {
  const Resolution open =
      ResolveText(Minimal("[hyperparameters]\nper_device_batch = \"auto\"\n"
                          "gradient_accumulation_steps = 4\n"));
  EXPECT_THAT(Describe(open.problems), HasSubstr("give global_batch"));
  EXPECT_THAT(Describe(open.problems), HasSubstr("per_device_batch = auto"));
  const Resolution uneven = ResolveText(
      Minimal("gpu_count = 2\n[hyperparameters]\nper_device_batch = \"auto\"\nglobal_batch = 9\n"));
  EXPECT_THAT(Describe(uneven.problems), HasSubstr("8 or 10 would be"));
}

TEST(BatchProblemTest, WarningGivesBothNumbers) {
  const Resolution r =
      ResolveText(Minimal("gpu_count = 8\n[hyperparameters]\nper_device_batch = 1\n"
                          "gradient_accumulation_steps = 16\nglobal_batch = 64\n"));
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_THAT(r.warnings[0].message, HasSubstr("= 128, but global_batch is 64"));
  EXPECT_THAT(r.warnings[0].message, HasSubstr("gradient_accumulation_steps becomes 8"));
  EXPECT_EQ(r.warnings[0].line, 10);
  EXPECT_EQ(OriginOf(r, "hyperparameters.gradient_accumulation_steps"),
            "derived: global_batch / (per_device_batch * gpu_count)");
}

TEST(BatchProblemTest, AnIndivisibleBatchSuggestsDivisibleOnes) {
  const Resolution r = ResolveText(
      Minimal("gpu_count = 8\n[hyperparameters]\nper_device_batch = 3\nglobal_batch = 64\n"));
  ASSERT_EQ(r.problems.size(), 1u);
  EXPECT_EQ(r.problems[0].key, "hyperparameters.global_batch");
  EXPECT_EQ(r.problems[0].line, 9);
  EXPECT_THAT(r.problems[0].message, HasSubstr("global_batch = 48 or 72 would be"));
}

TEST(BatchProblemTest, GlobalBelowTheRanksIsRefused) {
  const Resolution r = ResolveText(Minimal("gpu_count = 8\n[hyperparameters]\nglobal_batch = 4\n"));
  ASSERT_EQ(r.problems.size(), 1u);
  EXPECT_THAT(r.problems[0].message, HasSubstr("global_batch = 8 would be"));
}

TEST(BatchProblemTest, AStepOfTooManySequencesIsRefused) {
  const Resolution r =
      ResolveText(Minimal("gpu_count = 65536\n[hyperparameters]\nper_device_batch = 65536\n"
                          "gradient_accumulation_steps = 1000000\n"));
  ASSERT_EQ(r.problems.size(), 1u);
  EXPECT_THAT(r.problems[0].message, HasSubstr("at most 1000000000"));
}

TEST(BatchProblemTest, ThreeOverridesThatDisagreeAreRefused) {
  const Resolution r =
      ResolveText(Minimal("gpu_count = 2\n"),
                  {Set(kPrefix + "per_device_batch", "1"), Set(kPrefix + "global_batch", "64"),
                   Set(kPrefix + "gradient_accumulation_steps", "4")});
  ASSERT_EQ(r.problems.size(), 1u);
  EXPECT_THAT(r.problems[0].message, HasSubstr("= 8, but global_batch is 64"));
  EXPECT_THAT(r.problems[0].message, HasSubstr("global_batch = 8 would agree (given by --set)"));
}

TEST(BatchTest, PartOfAStepIsAStep) {
  EXPECT_EQ(StepsOfEpochs(1, 30), 30);
  EXPECT_EQ(StepsOfEpochs(0.1, 30), 3);  // a little more than 3 in floating point
  EXPECT_EQ(StepsOfEpochs(0.11, 30), 4);
  EXPECT_EQ(StepsOfEpochs(0.001, 30), 1);
}

}  // namespace
}  // namespace sft::spec
