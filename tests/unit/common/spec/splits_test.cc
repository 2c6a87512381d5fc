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

Resolution WithTensor(std::string_view compute, int ranks, std::string_view more = "") {
  return ResolveText(Minimal(std::string(compute) + "\n[hyperparameters.parallelism]\n" +
                             "tensor_parallel_size = " + std::to_string(ranks) + "\n" +
                             std::string(more)));
}

TEST(SplitsTest, GpusThatShareMatricesCountOnceInTheBatchAndInShards) {
  const Resolution r = WithTensor("gpu_count = 8", 4,
                                  "fsdp = true\n[hyperparameters]\nper_device_batch = 3\n"
                                  "gradient_accumulation_steps = 5\n");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.token_ranks(), 2);
  EXPECT_EQ(r.spec.data_ranks(), 2);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 3 * 2 * 5);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kFullShard);
}

TEST(SplitsTest, NothingIsLeftToShardWhereAllGpusShareMatrices) {
  const Resolution r = WithTensor("gpu_count = 4", 4, "fsdp = true\n");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kDdp);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("no two GPUs have the same parts"));
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

class TensorRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(TensorRefusalTest, SaysWhatWouldDo) {
  const Refusal& refusal = GetParam();
  const Resolution r = WithTensor(refusal.compute, refusal.ranks, refusal.more);
  EXPECT_FALSE(r.ok());
  EXPECT_THAT(Describe(r.problems), HasSubstr(refusal.message));
}

INSTANTIATE_TEST_SUITE_P(
    TensorJobs, TensorRefusalTest,
    ::testing::Values(
        Refusal{"OneGpu", "gpu_count = 1", 2, "", "cuts matrices over GPUs, but"},
        Refusal{"NotADivisor", "gpu_count = 8", 3, "", "2 would do"},
        Refusal{"MoreThanANode", "gpu_count = 8\nnodes = 4", 4, "",
                "the GPUs that share a matrix are in one node; 2 would do"},
        Refusal{"TooMany", "gpu_count = 64", 65, "", "from 1 to 64"},
        Refusal{"None", "gpu_count = 2", 0, "", "from 1 to 64"},
        Refusal{"Pipeline", "gpu_count = 4", 2, "pipeline_parallel_size = 2\n",
                "does not go with hyperparameters.parallelism.pipeline_parallel_size = 2"},
        Refusal{"Context", "gpu_count = 4", 2, "context_parallel_size = 2\n",
                "leave one of them out"},
        Refusal{"Preferences", "gpu_count = 2", 2, "[training]\nloss = \"dpo\"\n",
                "use fsdp = true"},
        Refusal{"Fp8", "gpu_count = 2", 2, "[training]\nmatmul = \"fp8\"\nuse_qlora = true\n",
                "use matmul = \"bf16\""},
        Refusal{"Offloading", "gpu_count = 2", 2, "offload_optimizer = true\n",
                "more GPUs hold less each"},
        Refusal{"CodedStates", "gpu_count = 2", 2,
                "[hyperparameters]\noptimizer = \"adamw_8bit\"\n", "use \"adamw\""},
        Refusal{"Dora", "gpu_count = 2", 2, "[lora]\nuse_dora = true\n", "lora.use_dora"},
        Refusal{"Answers", "gpu_count = 2", 2,
                "[training.validation]\nenabled = true\npredict_with_generate = true\n",
                "evaluate the adapter with a job of kind evaluate"}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Jobs, ContextRefusalTest,
    ::testing::Values(Refusal{"OneGpu", "gpu_count = 1", 2, "", "cuts rows over GPUs, but"},
                      Refusal{"NotADivisor", "gpu_count = 8", 3, "", "2 would do"},
                      Refusal{"PartsOfNodes", "gpu_count = 8\nnodes = 2", 6, "",
                              "so it must be a multiple of it that divides compute.gpu_count = 8 "
                              "(job.toml:6); 4 would do"},
                      Refusal{"NodesOfOneGpu", "gpu_count = 3\nnodes = 3", 2, "", "3 would do"},
                      Refusal{"NotAllRows", "gpu_count = 12\nnodes = 3", 8, "", "4 would do"},
                      Refusal{"HybridOverNodes", "gpu_count = 8\nnodes = 2", 8,
                              "fsdp = true\nfsdp_sharding_strategy = \"hybrid_shard\"\n",
                              "use \"full_shard\""},
                      Refusal{"Preferences", "gpu_count = 2", 2, "[training]\nloss = \"dpo\"\n",
                              "needs whole answers"},
                      Refusal{"RouterBalance", "gpu_count = 2", 2,
                              "[hyperparameters]\nrouter_aux_loss_coef = 0.01\n",
                              "experts are balanced over the tokens of a whole micro-batch"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
