#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tests/parity/golden_case.h"
#include "tests/unit/worker/engine/dist/run_ranks.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/optim/grad_norm.h"

// One job, many ways to run it: batch, accumulation, and every sharding over ranks must give one
// loss curve and one set of weights; recomputation must give the same bits.

namespace sft::engine {
namespace {

using at::Tensor;

const int kSteps = StepsToRun(20);
constexpr int kGlobalBatch = 12;
constexpr double kTolerance = 1e-5;
// Adam's first step moves an element by the learning rate, whichever way; where its gradient should
// be zero the rounding of the sums decides. In mixtures that is 1.4e-5 of all weights, from the
// first step on.
constexpr double kWeightsTolerance = 3e-5;

enum class Method { kFull, kLora, kQlora, kLora8bit };

struct Split {
  const char* name;
  spec::Sharding sharding;
  int world;
  int batch;
  int accumulation;
  int nodes = 1;
  int context = 1;  // ranks that share a row
  int tensor = 1;   // ranks that share each matrix
};

constexpr const char* kModel = "qwen3_tied";

// 30 documents of different lengths: an epoch is 12 + 12 + 6 rows, so its last step leaves ranks
// without rows.
std::shared_ptr<const Dataset> Rows() {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> loss;
  uint32_t state = 1;
  const auto next = [&state](uint32_t bound) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % bound;
  };
  for (int row = 0; row < 30; ++row) {
    const uint32_t length = 4 + next(12);
    tokens.emplace_back();
    loss.emplace_back();
    for (uint32_t i = 0; i < length; ++i) {
      tokens.back().push_back(static_cast<int32_t>(3 + next(125)));
      loss.back().push_back(i > 0 && (i > 2 || next(2) == 1));
    }
    loss.back().back() = 1;
  }
  return Dataset::FromDocuments(tokens, loss);
}

spec::JobSpec Job(Method method, const Split& split) {
  spec::JobSpec job =
      PlainJob(method == Method::kFull ? spec::Mode::kFullFinetune : spec::Mode::kLora);
  job.training.use_qlora = method == Method::kQlora || method == Method::kLora8bit;
  if (method == Method::kLora8bit) job.quantization.bits = 8;
  job.lora.r = 4;
  job.lora.alpha = 8;
  job.parallelism.sharding = split.sharding;
  job.parallelism.context_parallel_size = split.context;
  job.parallelism.tensor_parallel_size = split.tensor;
  job.parallelism.ddp_bucket_cap_mb = 0.01;  // several buckets
  job.compute.gpu_count = split.world;
  job.compute.nodes = split.nodes;
  job.compute.gpus_per_node = split.world / split.nodes;
  job.hyperparameters.per_device_batch = split.batch;
  job.hyperparameters.gradient_accumulation_steps = split.accumulation;
  job.hyperparameters.global_batch = kGlobalBatch;
  job.hyperparameters.max_steps = kSteps;
  job.hyperparameters.learning_rate = 1e-3;
  return job;
}

struct Curve {
  std::vector<double> loss;
  std::vector<double> norm;
  std::vector<Tensor> weights;  // trained, whole, in the order of the layout
};

// `as_if_on_gpu`: a rank of a GPU would hold masters and states where the job says, one of a CPU
// has one memory.
Curve TrainOnRank(const spec::JobSpec& job, Communicator& comm, bool as_if_on_gpu,
                  const std::string& name) {
  const at::NoGradGuard no_grad;
  plan::ExecutionPlan execution = plan::Unplanned(job, plan::Device::kCpu);
  execution.optimizer_on_host = as_if_on_gpu && job.parallelism.offload_optimizer;
  TrainingModel model(job, GoldenDir() / "families" / name, comm, execution);
  StepPlanOptions options = StepPlanOptions::FromSpec(job);
  options.world_size = model.mesh().row_ranks();
  const StepPlan plan(Rows(), options);
  Curve curve;
  for (int64_t index = 0; index < job.hyperparameters.max_steps; ++index) {
    const Step step = plan.GetStep(index);
    model.BeginStep();
    double sum = 0;
    for (int micro = 0; micro < step.micro_batches; ++micro) {
      sum += model
                 .ForwardBackward(plan.GetMicroBatch(step, micro, model.mesh().row_rank()), index,
                                  micro, micro + 1 == step.micro_batches)
                 .item<double>();
    }
    const double scale = 1.0 / static_cast<double>(step.loss_tokens);
    curve.loss.push_back(AllReduceSumDouble(comm, sum) * scale);
    curve.norm.push_back(model.ReduceGradients(scale));
    model.Update(job.hyperparameters.learning_rate, scale * ClipFactor(curve.norm.back(), 1.0));
  }
  for (int unit = 0; unit < model.layout().size(); ++unit) {
    for (size_t i = 0; i < model.layout().units[unit].params.size(); ++i) {
      if (!model.layout().units[unit].params[i].trainable) continue;
      curve.weights.push_back(model.Gather(unit, static_cast<int>(i)).clone());
    }
  }
  return curve;
}

Curve Train(const spec::JobSpec& job, bool as_if_on_gpu = false, const std::string& name = kModel) {
  if (job.compute.gpu_count == 1) {
    const auto comm = MakeLocalCommunicator(at::kCPU);
    return TrainOnRank(job, *comm, as_if_on_gpu, name);
  }
  Curve first;
  std::mutex mutex;
  RunRanks(job.compute.gpu_count, [&](Communicator& comm) {
    Curve curve = TrainOnRank(job, comm, as_if_on_gpu, name);
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0) first = std::move(curve);
  });
  return first;
}

void ExpectClose(const Curve& actual, const Curve& expected) {
  ASSERT_EQ(actual.loss.size(), expected.loss.size());
  for (size_t step = 0; step < expected.loss.size(); ++step) {
    EXPECT_NEAR(actual.loss[step], expected.loss[step], kTolerance * expected.loss[step]) << step;
    EXPECT_NEAR(actual.norm[step], expected.norm[step], 1e-4 * expected.norm[step]) << step;
  }
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < actual.weights.size(); ++i) {
    difference += (actual.weights[i] - expected.weights[i]).square().sum().item<double>();
    size += expected.weights[i].square().sum().item<double>();
  }
  EXPECT_LT(std::sqrt(difference / size), kWeightsTolerance);
}

void ExpectSameBits(const Curve& actual, const Curve& expected) {
  EXPECT_EQ(actual.loss, expected.loss);
  EXPECT_EQ(actual.norm, expected.norm);
  ASSERT_EQ(actual.weights.size(), expected.weights.size());
  for (size_t i = 0; i < actual.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(actual.weights[i], expected.weights[i])) << i;
  }
}

constexpr Split kWhole = {"batch", spec::Sharding::kDdp, 1, 12, 1};
// World 3 cuts unevenly; with 8 ranks some hold no quantised bytes of a block, and no rows.
constexpr Split kSplits[] = {
    {"accumulation", spec::Sharding::kDdp, 1, 1, 12},
    {"ddp", spec::Sharding::kDdp, 4, 1, 3},
    {"zero1", spec::Sharding::kZero1, 4, 1, 3},
    {"zero1_uneven", spec::Sharding::kZero1, 3, 4, 1},
    {"zero2", spec::Sharding::kZero2, 3, 2, 2},
    {"full_shard", spec::Sharding::kFullShard, 3, 4, 1},
    {"full_shard_one_rank", spec::Sharding::kFullShard, 1, 6, 2},
    {"zero2_six", spec::Sharding::kZero2, 6, 1, 2},
    {"hybrid_shard", spec::Sharding::kHybridShard, 4, 1, 3, 2},
    {"hybrid_shard_uneven", spec::Sharding::kHybridShard, 6, 2, 1, 2},
    {"hybrid_shard_one_node", spec::Sharding::kHybridShard, 2, 3, 2, 1},
    {"full_shard_twelve", spec::Sharding::kFullShard, 12, 1, 1},
    {"context", spec::Sharding::kDdp, 2, 4, 3, 1, 2},
    {"context_four", spec::Sharding::kDdp, 4, 12, 1, 1, 4},  // two ranks to a head of keys
    {"context_ddp", spec::Sharding::kDdp, 4, 3, 2, 1, 2},
    {"context_zero1", spec::Sharding::kZero1, 2, 6, 2, 1, 2},
    {"context_zero2", spec::Sharding::kZero2, 4, 3, 2, 1, 2},
    {"context_full_shard", spec::Sharding::kFullShard, 2, 4, 3, 1, 2},
    {"context_full_shard_four", spec::Sharding::kFullShard, 4, 2, 3, 1, 2},
    {"context_hybrid_shard", spec::Sharding::kHybridShard, 8, 1, 3, 2, 2},
    {"context_nodes", spec::Sharding::kDdp, 4, 4, 3, 2, 4},  // two ranks to a node
    {"context_nodes_of_one", spec::Sharding::kZero1, 3, 2, 6, 3, 3},
    {"context_nodes_full_shard", spec::Sharding::kFullShard, 8, 3, 2, 4, 4},
};

class StrategiesTest : public testing::TestWithParam<Method> {};

TEST_P(StrategiesTest, EverySplitGivesTheCurveAndTheWeightsOfOneBatch) {
  const Curve expected = Train(Job(GetParam(), kWhole));
  for (const Split& split : kSplits) {
    SCOPED_TRACE(split.name);
    ExpectClose(Train(Job(GetParam(), split)), expected);
  }
}

// Another model than the one of most tests, for so many steps; recomputed and not.
void ExpectTheSameUnder(std::span<const Split> splits, Method method, const char* model,
                        int steps) {
  const auto job_of = [&](const Split& split) {
    spec::JobSpec job = Job(method, split);
    job.hyperparameters.max_steps = std::min(kSteps, steps);
    return job;
  };
  const Curve expected = Train(job_of(kWhole), false, model);
  for (const Split& split : splits) {
    SCOPED_TRACE(split.name);
    spec::JobSpec job = job_of(split);
    const Curve kept = Train(job, false, model);
    ExpectClose(kept, expected);
    job.parallelism.activation_checkpointing = true;
    ExpectSameBits(Train(job, false, model), kept);
  }
}

// Layers of an E model of Gemma 4 differ in size, attend to keys of others and have inputs of their
// own, made in the embedding's unit; a constant in each is never trained.
TEST_P(StrategiesTest, LayersMayDifferAndShareUnderEveryStrategy) {
  const Split splits[] = {{"ddp", spec::Sharding::kDdp, 2, 3, 2},
                          {"zero2", spec::Sharding::kZero2, 3, 2, 2},
                          {"full_shard", spec::Sharding::kFullShard, 3, 4, 1},
                          {"hybrid_shard", spec::Sharding::kHybridShard, 4, 1, 3, 2},
                          {"context", spec::Sharding::kFullShard, 4, 3, 2, 1, 2},
                          {"context_nodes", spec::Sharding::kFullShard, 4, 3, 4, 2, 4}};
  // Its attention nearly takes one key; from step 10 on it magnifies the rounding of other sums.
  ExpectTheSameUnder(splits, GetParam(), "gemma4_e_tied", 8);
}

// With four ranks two have the same head of keys, and its gradients are sums of both's.
constexpr Split kMatrixSplits[] = {
    {"tensor", spec::Sharding::kDdp, 2, 4, 3, 1, 1, 2},
    {"tensor_four", spec::Sharding::kDdp, 4, 12, 1, 1, 1, 4},
    {"tensor_ddp", spec::Sharding::kDdp, 4, 3, 2, 1, 1, 2},
    {"tensor_zero1", spec::Sharding::kZero1, 4, 2, 3, 1, 1, 2},
    {"tensor_zero2", spec::Sharding::kZero2, 8, 3, 2, 1, 1, 4},
    {"tensor_full_shard", spec::Sharding::kFullShard, 6, 2, 2, 1, 1, 2},
    {"tensor_hybrid_shard", spec::Sharding::kHybridShard, 8, 1, 3, 2, 1, 2},
};

// The model is too small for parts of its matrices in 4 bits (TensorParallelTest).
TEST_P(StrategiesTest, MatricesThatRanksShareGiveTheCurveOfOneBatch) {
  if (GetParam() == Method::kQlora) GTEST_SKIP() << "parts of blocks of 64";
  for (const char* model : {kModel, "phi3_longrope_partial_tied", "qwen2_rope_yarn_tied"}) {
    SCOPED_TRACE(model);
    const bool phi = std::string_view(model).starts_with("phi3");  // its heads are in one matrix
    std::vector<Split> splits(std::begin(kMatrixSplits), std::end(kMatrixSplits));
    if (phi) std::erase_if(splits, [](const Split& split) { return split.tensor > 2; });
    // The other models have three of the layouts: matrices alone, and two that shard too.
    if (model != std::string_view(kModel)) splits.erase(splits.begin() + 1, splits.end() - 2);
    ExpectTheSameUnder(splits, GetParam(), model, 8);
  }
}

// Stacks are cut anywhere, within an expert too; a rank's tokens leave some experts without rows.
TEST_P(StrategiesTest, ExpertsAreTrainedAlikeUnderEveryStrategy) {
  const Split splits[] = {{"ddp", spec::Sharding::kDdp, 2, 3, 2},
                          {"full_shard", spec::Sharding::kFullShard, 4, 3, 1},
                          {"context", spec::Sharding::kFullShard, 4, 3, 2, 1, 2},
                          {"context_nodes", spec::Sharding::kZero2, 4, 3, 4, 2, 4}};
  for (const char* model : {"qwen3_moe_mixed", "gpt_oss", "gemma4_moe_tied"}) {
    SCOPED_TRACE(model);
    ExpectTheSameUnder(splits, GetParam(), model, 5);
  }
}

// Gated DeltaNets beside attention: a block has other tensors than the next, some of them in fp32.
TEST_P(StrategiesTest, HybridsAreTrainedAlikeUnderEveryStrategy) {
  const Split splits[] = {{"zero2", spec::Sharding::kZero2, 3, 2, 2},
                          {"full_shard", spec::Sharding::kFullShard, 4, 3, 1}};
  for (const char* model : {"qwen3_5_biases_untied", "qwen3_next_biases_tied"}) {
    SCOPED_TRACE(model);
    ExpectTheSameUnder(splits, GetParam(), model, 5);
  }
  // Two ranks divide the heads of these.
  const Split context[] = {{"context", spec::Sharding::kFullShard, 4, 3, 2, 1, 2}};
  for (const char* model : {"qwen3_5_tied", "qwen3_next"}) {
    SCOPED_TRACE(model);
    ExpectTheSameUnder(context, GetParam(), model, 5);
  }
}

// What is held in fp32 stays so in shards, and a router in fp32 meets gradients in bf16.
TEST_P(StrategiesTest, ExactTensorsInBf16AreShardedAsTheyAreWhole) {
  const auto job_of = [](const Split& split) {
    spec::JobSpec job = Job(GetParam(), split);
    job.parallelism.compute_type = spec::ComputeType::kBf16;
    job.hyperparameters.max_steps = 2;
    return job;
  };
  for (const char* model : {"glm4_moe", "glm4_moe_groups", "qwen3_5_biases_untied"}) {
    SCOPED_TRACE(model);
    const Curve whole = Train(job_of({"ddp", spec::Sharding::kDdp, 2, 3, 2}), false, model);
    const Curve sharded =
        Train(job_of({"full_shard", spec::Sharding::kFullShard, 2, 3, 2}), false, model);
    // Before the first update they compute with the same weights.
    EXPECT_NEAR(sharded.loss[0], whole.loss[0], 1e-4 * whole.loss[0]);
    EXPECT_NEAR(sharded.norm[0], whole.norm[0], 2e-2 * whole.norm[0]);
    EXPECT_NEAR(sharded.loss[1], whole.loss[1], 2e-3 * whole.loss[1]);
  }
}

TEST_P(StrategiesTest, TrainingChangesTheWeightsAndLowersTheLoss) {
  const Curve curve = Train(Job(GetParam(), kWhole));
  EXPECT_LT(curve.loss.back(), curve.loss.front());
  for (const Tensor& weight : curve.weights) EXPECT_GT(weight.abs().sum().item<double>(), 0.0);
}

TEST_P(StrategiesTest, CheckpointingGivesTheSameBitsUnderEveryStrategy) {
  for (const Split& split : {Split{"ddp", spec::Sharding::kDdp, 2, 3, 2},
                             Split{"zero1", spec::Sharding::kZero1, 2, 3, 2},
                             Split{"zero2", spec::Sharding::kZero2, 2, 3, 2},
                             Split{"full_shard", spec::Sharding::kFullShard, 2, 3, 2},
                             Split{"hybrid_shard", spec::Sharding::kHybridShard, 4, 1, 3, 2},
                             Split{"context", spec::Sharding::kZero2, 4, 3, 2, 1, 2},
                             Split{"context_nodes", spec::Sharding::kZero2, 4, 3, 4, 2, 4}}) {
    SCOPED_TRACE(split.name);
    spec::JobSpec job = Job(GetParam(), split);
    job.lora.dropout = 0.1;
    const Curve kept = Train(job);
    job.parallelism.activation_checkpointing = true;
    ExpectSameBits(Train(job), kept);
  }
}

TEST_P(StrategiesTest, AnOptimizerOnTheHostGivesTheSameBitsUnderEveryStrategy) {
  for (const Split& split :
       {Split{"one", spec::Sharding::kDdp, 1, 4, 3}, Split{"ddp", spec::Sharding::kDdp, 2, 3, 2},
        Split{"zero1", spec::Sharding::kZero1, 3, 2, 2},
        Split{"zero2", spec::Sharding::kZero2, 3, 2, 2},
        Split{"full_shard", spec::Sharding::kFullShard, 3, 2, 2},
        Split{"hybrid_shard", spec::Sharding::kHybridShard, 4, 1, 3, 2}}) {
    SCOPED_TRACE(split.name);
    spec::JobSpec job = Job(GetParam(), split);
    const Curve plain = Train(job);
    job.parallelism.offload_optimizer = true;
    ExpectSameBits(Train(job, /*as_if_on_gpu=*/true), plain);
  }
}

TEST_P(StrategiesTest, ACpuRankRunsAJobThatOffloadsAsAnyOther) {
  spec::JobSpec job = Job(GetParam(), {"zero2", spec::Sharding::kZero2, 2, 3, 2});
  const Curve plain = Train(job);
  job.parallelism.offload_optimizer = true;
  ExpectSameBits(Train(job), plain);
}

TEST_P(StrategiesTest, TwoRunsWithOneSeedAreEqualBitForBit) {
  spec::JobSpec job = Job(GetParam(), {"", spec::Sharding::kZero2, 3, 4, 1});
  job.lora.dropout = 0.2;
  ExpectSameBits(Train(job), Train(job));
}

std::string NameOf(Method method) {
  switch (method) {
    case Method::kFull:
      return "Full";
    case Method::kLora:
      return "Lora";
    case Method::kQlora:
      return "Qlora";
    case Method::kLora8bit:
      return "Lora8bit";
  }
  return "";
}

void PrintTo(Method method, std::ostream* out) { *out << NameOf(method); }

INSTANTIATE_TEST_SUITE_P(Methods, StrategiesTest,
                         testing::Values(Method::kFull, Method::kLora, Method::kQlora,
                                         Method::kLora8bit),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace sft::engine
