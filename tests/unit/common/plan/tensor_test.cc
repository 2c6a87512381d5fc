#include "common/plan/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/plan/plan.h"
#include "common/plan/step_time.h"
#include "common/plan/tensors.h"
#include "tests/unit/common/plan/jobs.h"
#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

spec::JobSpec CutOver(int ranks, spec::JobSpec job) {
  job.compute.gpu_count = job.compute.gpus_per_node = ranks;
  job.parallelism.tensor_parallel_size = ranks;
  return job;
}

// Elements of a block's tensor, by the end of its name.
int64_t ElementsOf(const ModelShape& shape, std::string_view name) {
  for (const TensorInfo& tensor : BlockTensors(shape, 0).tensors) {
    if (tensor.name.ends_with(name)) return tensor.elements();
  }
  return 0;
}

TEST(TensorTest, ARankHasItsPartOfEachMatrixAndOfHeadsOfKeysOneAtLeast) {
  const ModelShape shape = Qwen3Of8B();  // 32 heads, 8 of keys
  for (const auto& [ranks, heads, keys] : {std::tuple(2, 16, 4), {8, 4, 1}, {16, 2, 1}}) {
    const spec::JobSpec job = CutOver(ranks, Qlora(1, 1, 2048));
    EXPECT_FALSE(CheckTensor(shape, job)) << ranks;
    const ModelShape own = ShapeOfTensorRank(shape, job);
    EXPECT_EQ(own.heads, heads);
    EXPECT_EQ(own.Layer(0).kv_heads, keys);
    for (const char* name : {"q_proj.weight", "o_proj.weight", "gate_proj.weight", "up_proj.weight",
                             "down_proj.weight"}) {
      EXPECT_EQ(ElementsOf(own, name) * ranks, ElementsOf(shape, name)) << name;
    }
    EXPECT_EQ(ElementsOf(own, "k_proj.weight"), ElementsOf(shape, "k_proj.weight") / 8 * keys);
    EXPECT_EQ(ElementsOf(own, "q_norm.weight"), ElementsOf(shape, "q_norm.weight"));
    EXPECT_EQ(ElementsOf(own, "input_layernorm.weight"), shape.hidden);
  }
}

struct Bad {
  const char* name;
  int ranks;
  void (*change)(ModelShape& shape, spec::JobSpec& job);
  const char* message;
};

class TensorRefusal : public ::testing::TestWithParam<Bad> {};

TEST_P(TensorRefusal, SaysWhatWouldDo) {
  ModelShape shape = Qwen3Of8B();
  spec::JobSpec job = CutOver(GetParam().ranks, Qlora(1, 1, 2048));
  job.compute.gpus_per_node = 8;
  GetParam().change(shape, job);
  const auto problem = CheckTensor(shape, job);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "hyperparameters.parallelism.tensor_parallel_size");
  EXPECT_THAT(problem->message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, TensorRefusal,
    ::testing::Values(
        Bad{"Heads", 3, [](ModelShape&, spec::JobSpec&) {},
            "does not divide the model's 32 heads with 8 of keys; 2, 4, 8 would do"},
        Bad{"HeadsOfOddNodes", 3,
            [](ModelShape&, spec::JobSpec& job) { job.compute.gpus_per_node = 3; },
            "2, 4, 8, 16, 32 would do, on nodes with a multiple of so many GPUs"},
        Bad{"Intermediate", 2, [](ModelShape& s, spec::JobSpec&) { s.intermediate = 12289; },
            "does not divide the intermediate size, 12289; leave it out"},
        Bad{"Blocks", 4, [](ModelShape& s, spec::JobSpec&) { s.intermediate = 4864 - 128; },
            "leaves a rank 1184 elements of the intermediate size: in 4 bits the ranks' parts are "
            "multiples of 64; 2 would do"},
        Bad{"JoinedKeys", 16,
            [](ModelShape& s, spec::JobSpec&) {
              s.family = "phi3";
              s.qk_norm = QkNorm::kNone;
            },
            "more than the 8 heads of keys, which this phi3 model has in one matrix"},
        Bad{"WholeNorms", 2, [](ModelShape& s, spec::JobSpec&) { s.qk_norm = QkNorm::kWhole; },
            "norms over all heads together"},
        Bad{"Deltas", 2,
            [](ModelShape& s, spec::JobSpec&) {
              s.layer_shapes.assign(static_cast<size_t>(s.layers), s.Layer(0));
              s.layer_shapes[0].delta = true;
            },
            "gated DeltaNets"},
        Bad{"Experts", 2,
            [](ModelShape& s, spec::JobSpec&) {
              s.layer_shapes.assign(static_cast<size_t>(s.layers), s.Layer(0));
              s.layer_shapes[1].experts = 8;
            },
            "mixtures of experts"},
        Bad{"CodedStates", 2,
            [](ModelShape&, spec::JobSpec& job) {
              job.hyperparameters.optimizer = spec::Optimizer::kAdamW8bit;
            },
            "use \"adamw\""}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(TensorTest, WhatIsNotIn4BitsMayBeCutAnywhere) {
  ModelShape shape = Qwen3Of8B();
  shape.intermediate = 4864 - 128;
  EXPECT_FALSE(CheckTensor(shape, CutOver(4, Full())));
  spec::JobSpec eight = CutOver(4, Qlora(1, 1, 2048));
  eight.quantization.bits = 8;
  EXPECT_FALSE(CheckTensor(shape, eight));
}

// Four messages of a hidden row each way, and of full fine-tuning what the linears read once more.
TEST(TensorTest, ALayerExchangesFourRowsEachWay) {
  const ModelShape shape = Qwen3Of8B();
  EXPECT_EQ(TensorExchangesOf(shape, Full())[0].forward, 0);
  const TensorExchange full = TensorExchangesOf(shape, CutOver(2, Full()))[0];
  EXPECT_EQ(full.forward, 4 * shape.hidden);
  EXPECT_EQ(full.backward, 6 * shape.hidden);
  const TensorExchange lora = TensorExchangesOf(shape, CutOver(2, Lora(16, {"all-linear"})))[0];
  EXPECT_EQ(lora.forward, 4 * shape.hidden + 5 * 16);
  EXPECT_EQ(lora.backward, lora.forward);
}

TEST(TensorTest, WhatSeveralRanksHaveIsCountedByHowManyDo) {
  const ModelShape shape = Qwen3Of8B();
  const auto shared = [&](int ranks, const spec::JobSpec& job) {
    return MakeProblem(shape, CutOver(ranks, job), 2048)->shared;
  };
  const int64_t norms = shape.layers * 2 * (shape.hidden + shape.head_dim) + shape.hidden;
  const int64_t whole = 2 * shape.vocab * shape.hidden + norms;
  using Shared = std::map<int64_t, int64_t>;
  EXPECT_EQ(shared(1, Full()), Shared());
  EXPECT_EQ(shared(2, Full()), (Shared{{2, whole}}));
  // Each head of keys and values is two ranks'.
  const int64_t keys = shape.layers * 2 * shape.head_dim * shape.hidden;
  EXPECT_EQ(shared(16, Full()), (Shared{{2, keys}, {16, whole}}));
  // A of five linears, and B of two.
  const int64_t factors = shape.layers * 7 * 16 * shape.hidden;
  EXPECT_EQ(shared(2, Lora(16, {"all-linear"})), (Shared{{2, factors}}));
}

// Once a step, in fp32, and nothing hides it; each rank of a sharded optimizer sends its part.
TEST(TensorTest, GradientsOfWhatSeveralRanksHaveAreSummed) {
  spec::JobSpec job = CutOver(2, Full());
  const GpuRates gpu = *FindGpu("H100");
  const auto seconds = [&](bool shares) {
    Problem problem = *MakeProblem(Qwen3Of8B(), job, 2048);
    if (!shares) problem.shared.clear();
    const ExecutionPlan run{.rows = 1, .micro_batches = 4, .logits_bytes = int64_t{1} << 28};
    return PredictTime(problem, run, gpu).exchange;
  };
  const double bytes = 4.0 * static_cast<double>(MakeProblem(Qwen3Of8B(), job, 2048)->shared[2]);
  EXPECT_GT(bytes, 4.9e9);
  EXPECT_NEAR(seconds(true) - seconds(false), bytes / gpu.bus, 1e-6);
  job.compute.gpu_count = job.compute.gpus_per_node = 8;
  EXPECT_NEAR(seconds(true) - seconds(false), bytes / gpu.bus, 1e-6);
  job.parallelism.sharding = spec::Sharding::kZero1;
  EXPECT_NEAR(seconds(true) - seconds(false), bytes / gpu.bus / 4, 1e-6);
}

// Ranks that have the same heads of keys are a group of their own.
TEST(TensorTest, MoreThanTwoRanksHaveAGroupMore) {
  const auto bytes = [](int ranks) {
    return AllocatorBytes(CutOver(ranks, Full()), 80'000'000'000, /*opened=*/true);
  };
  EXPECT_LT(bytes(4), bytes(2));
}

TEST(TensorTest, ARefusalProposesOnlyWhatGoesWithIt) {
  const auto refusal = [](int ranks, const ModelShape& shape, double gigabytes) {
    spec::JobSpec job = Qlora(1, 1, 2048);
    job.training.use_qlora = false;
    job.quantization.bits = 0;
    return MakePlan(Input(CutOver(ranks, job), gigabytes, shape)).status().ToString();
  };
  const std::string fits = refusal(2, Qwen3Of8B(), 7);
  EXPECT_THAT(fits, HasSubstr("the job does not fit"));
  EXPECT_THAT(fits, HasSubstr("use_qlora = true"));
  EXPECT_THAT(fits, Not(HasSubstr("offload_")));
  // An eighth of the intermediate size is no multiple of 64.
  const ModelShape llama{.family = "llama",
                         .hidden = 4096,
                         .layers = 32,
                         .heads = 32,
                         .kv_heads = 32,
                         .head_dim = 128,
                         .intermediate = 11008,
                         .vocab = 32000};
  const std::string uneven = refusal(8, llama, 2);
  EXPECT_THAT(uneven, HasSubstr("the job does not fit"));
  EXPECT_THAT(uneven, Not(HasSubstr("use_qlora")));
}

// Weights, gradients and states of the blocks are halved, and so is the time but for messages.
TEST(TensorTest, TwoGpusTakeAboutHalfOfTheMemoryAndMoreThanHalfOfTheTime) {
  const auto one = MakePlan(Input(Qlora(1, 1, 8192), 140));
  ASSERT_TRUE(one.ok()) << one.status();
  const auto two = MakePlan(Input(CutOver(2, Qlora(1, 1, 8192)), 140));
  ASSERT_TRUE(two.ok()) << two.status();
  const double speedup = two->tokens_per_second / one->tokens_per_second;
  EXPECT_GT(speedup, 1.5);
  EXPECT_LT(speedup, 1.95);
  EXPECT_GT(two->time.exchange, 0);
  EXPECT_THAT(Describe(*two, CutOver(2, Qlora(1, 1, 8192)), 36),
              HasSubstr("% of a step between the 2 GPUs that share matrices"));
  const auto least_one = LeastBytes(Qwen3Of8B(), Qlora(1, 1, 8192));
  const auto least_two = LeastBytes(Qwen3Of8B(), CutOver(2, Qlora(1, 1, 8192)));
  EXPECT_LT(static_cast<double>(*least_two), 0.75 * static_cast<double>(*least_one));
}

}  // namespace
}  // namespace sft::plan
