#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

const std::string kContext = "hyperparameters.parallelism.context_parallel_size";

Resolution WithContext(std::string_view compute, int ranks, std::string_view more = "") {
  return ResolveText(Minimal(std::string(compute) + "\n[hyperparameters.parallelism]\n" +
                             "context_parallel_size = " + std::to_string(ranks) + "\n" +
                             std::string(more)));
}

TEST(SplitsTest, GpusThatShareARowCountOnceInTheBatch) {
  const Resolution r = WithContext("gpu_count = 8", 4,
                                   "[hyperparameters]\nper_device_batch = 3\n"
                                   "gradient_accumulation_steps = 5\n");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.token_ranks(), 8);
  EXPECT_EQ(r.spec.data_ranks(), 2);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 3 * 2 * 5);
}

TEST(SplitsTest, TheAccumulationFollowsFromTheRanksThatTakeOtherRows) {
  const Resolution r = WithContext("gpu_count = 8", 2,
                                   "[hyperparameters]\nglobal_batch = 24\nper_device_batch = 2\n");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 3);
  EXPECT_THAT(OriginOf(r, "hyperparameters.gradient_accumulation_steps"),
              HasSubstr("(gpu_count / context_parallel_size)"));
}

TEST(SplitsTest, ABatchThatDoesNotDivideNamesBothKeys) {
  const Resolution r = WithContext("gpu_count = 8", 2, "[hyperparameters]\nglobal_batch = 6\n");
  EXPECT_THAT(Describe(r.problems), HasSubstr("context_parallel_size = 2"));
  EXPECT_THAT(Describe(r.problems), HasSubstr("global_batch = 4 or 8"));
}

// A divisor larger than the GPUs is refused, whatever else is wrong with the file.
TEST(SplitsTest, WhatLeavesNoRankIsAProblemAndNoMore) {
  for (const char* text :
       {"gpu_count = 2\n[model]\ndevice_map = \"balanced_low_0\"\n[hyperparameters]\n"
        "global_batch = 8\n[hyperparameters.parallelism]\npipeline_parallel_size = 4\n",
        "gpu_count = 4\ngpus_per_node = 0\n[hyperparameters]\nglobal_batch = 8\n"
        "[hyperparameters.parallelism]\ncontext_parallel_size = 8\n"}) {
    EXPECT_FALSE(ResolveText(Minimal(text)).ok()) << text;
  }
}

struct Refusal {
  const char* name;
  const char* compute;
  int ranks;
  const char* more;
  const char* message;
  friend void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
};

class ContextRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(ContextRefusalTest, SaysWhatWouldDo) {
  const Refusal& refusal = GetParam();
  const Resolution r = WithContext(refusal.compute, refusal.ranks, refusal.more);
  EXPECT_FALSE(r.ok());
  EXPECT_THAT(Describe(r.problems), HasSubstr(refusal.message));
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, ContextRefusalTest,
    ::testing::Values(Refusal{"OneGpu", "gpu_count = 1", 2, "", "cuts rows over GPUs, but"},
                      Refusal{"NotADivisor", "gpu_count = 8", 3, "", "2 would do"},
                      Refusal{"MoreThanANode", "gpu_count = 8\nnodes = 4", 4, "",
                              "the GPUs that share a row are in one node; 2 would do"},
                      Refusal{"Preferences", "gpu_count = 2", 2, "[training]\nloss = \"dpo\"\n",
                              "needs whole answers"},
                      Refusal{"RouterBalance", "gpu_count = 2", 2,
                              "[hyperparameters]\nrouter_aux_loss_coef = 0.01\n",
                              "experts are balanced over the tokens of a whole micro-batch"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
