#include "common/plan/offload_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Full fine-tuning of Qwen3-8B with 131,072 tokens a step on one GPU: 8,190,735,360 elements.
constexpr int64_t kElements = 8'190'735'360;

spec::JobSpec FullOnHost() {
  spec::JobSpec job;
  job.compute.gpu_type = "H200";
  job.training.mode = spec::Mode::kFullFinetune;
  job.hyperparameters.per_device_batch = 0;
  job.hyperparameters.gradient_accumulation_steps = 0;
  job.hyperparameters.global_batch = 32;
  job.hyperparameters.sequence_length = 4096;
  job.parallelism.offload_optimizer = true;
  return job;
}

PlanInput OnHost(const spec::JobSpec& job, double host_gigabytes) {
  constexpr int64_t kH200Bytes = 150'700'000'000;
  return {.shape = Qwen3Of8B(),
          .job = job,
          .gpu = *FindGpu(job.compute.gpu_type),
          .memory_bytes = AllocatorBytes(job, kH200Bytes, /*opened=*/false),
          .host_bytes = static_cast<int64_t>(host_gigabytes * 1e9)};
}

TEST(HostMemoryTest, MastersAndStatesLeaveTheGpu) {
  const auto on_host = MakeProblem(Qwen3Of8B(), FullOnHost(), 4096);
  spec::JobSpec job = FullOnHost();
  job.parallelism.offload_optimizer = false;
  const auto on_gpu = MakeProblem(Qwen3Of8B(), job, 4096);
  ASSERT_TRUE(on_host.ok() && on_gpu.ok());
  EXPECT_EQ(on_host->held.host_masters, 4 * kElements);
  EXPECT_EQ(on_host->held.host_optimizer, 8 * kElements);
  EXPECT_EQ(on_host->held.total(), on_gpu->held.total() - 12 * kElements);
  // Four buffers of 2^24 elements each way, in bf16.
  EXPECT_EQ(HostBytes(*on_host), 12 * kElements + 4 * (int64_t{1} << 24) * 4);
  EXPECT_EQ(HostBytes(*on_gpu), 0);
}

TEST(HostMemoryTest, MastersOfTheComputeTypeAreHeldBesideTheWeights) {
  spec::JobSpec job = FullOnHost();
  job.hyperparameters.master_weights = spec::MasterWeights::kBf16;
  const auto problem = MakeProblem(Qwen3Of8B(), job, 4096);
  ASSERT_TRUE(problem.ok());
  EXPECT_EQ(problem->held.host_masters, 2 * kElements);
  EXPECT_EQ(problem->held.trained_weights, 2 * kElements);
}

TEST(HostMemoryTest, EachRankKeepsItsOwnPart) {
  spec::JobSpec job = FullOnHost();
  job.compute.gpu_count = 4;
  job.compute.gpus_per_node = 4;
  job.parallelism.sharding = spec::Sharding::kZero2;
  const auto problem = MakeProblem(Qwen3Of8B(), job, 4096);
  ASSERT_TRUE(problem.ok());
  EXPECT_NEAR(static_cast<double>(problem->held.host_masters), static_cast<double>(kElements), 64);
}

TEST(HostMemoryTest, ACpuRankIsNotAffectedByOffloading) {
  const auto units = MakeUnits(Qwen3Of8B(), FullOnHost());
  ASSERT_TRUE(units.ok());
  const Memory memory = PlanMemory(*units, FullOnHost(), Device::kCpu);
  EXPECT_EQ(memory.host_masters + memory.host_optimizer, 0);
  EXPECT_EQ(memory.optimizer, 8 * kElements);
}

// 36 blocks of 192,946,432 elements, of which all but 8,448 of norms are linears'.
constexpr int64_t kBlocks = 36 * int64_t{192'946'432}, kNorms = 36 * int64_t{8'448};

TEST(HostMemoryTest, WeightsOfBlocksLeaveTheGpu) {
  spec::JobSpec full = FullOnHost(), lora = FullOnHost(), qlora = FullOnHost();
  for (spec::JobSpec* job : {&full, &lora, &qlora}) job->parallelism.offload_param = true;
  for (spec::JobSpec* job : {&lora, &qlora}) {
    job->parallelism.offload_optimizer = false;
    job->training.mode = spec::Mode::kLora;
  }
  qlora.training.use_qlora = true;
  for (const spec::JobSpec& job : {full, lora, qlora}) {
    spec::JobSpec without = job;
    without.parallelism.offload_param = false;
    const auto streamed = MakeProblem(Qwen3Of8B(), job, 4096);
    const auto resident = MakeProblem(Qwen3Of8B(), without, 4096);
    ASSERT_TRUE(streamed.ok() && resident.ok());
    const int64_t weights = streamed->held.host_weights;
    EXPECT_EQ(streamed->held.weights() + weights, resident->held.weights());
    EXPECT_EQ(HostBytes(*streamed) - HostBytes(*resident), weights);
    if (job.qlora()) {
      EXPECT_NEAR(static_cast<double>(weights), 0.516 * static_cast<double>(kBlocks - kNorms), 4e6);
    } else {
      EXPECT_EQ(weights, 2 * (job.full_finetune() ? kBlocks : kBlocks - kNorms));
    }
  }
}

TEST(HostMemoryTest, WeightsThatAreStreamedFitASmallerGpuAndTakeTheBusTime) {
  spec::JobSpec job = FullOnHost();
  job.parallelism.offload_optimizer = false;
  job.training.mode = spec::Mode::kLora;
  PlanInput input = OnHost(job, 100);
  input.memory_bytes = 15'000'000'000;
  const absl::Status refused = MakePlan(input).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("offload_param = true, where the node has the memory"));
  input.job.parallelism.offload_param = true;
  const auto streamed = MakePlan(input);
  ASSERT_TRUE(streamed.ok()) << streamed.status();
  EXPECT_THAT(Describe(*streamed, input.job, 36), HasSubstr("weights in 13.9 GB of host memory"));
  // 386 MB a block at 50 GB/s: beside the products of many tokens, not of few.
  const ExecutionPlan few{
      .rows = 1, .micro_batches = 32, .deep = Recompute::kAll, .deep_layers = 36};
  ExecutionPlan many = few;
  many.rows = 32;
  many.micro_batches = 1;
  const auto problem = MakeProblem(input.shape, input.job, 1024);
  ASSERT_TRUE(problem.ok());
  EXPECT_GT(PredictTime(*problem, few, input.gpu).weights, 32 * 72 * 0.004);
  EXPECT_LT(PredictTime(*problem, many, input.gpu).weights, 72 * 0.001);
}

TEST(HostMemoryTest, TooLittleForWeightsIsRefusedByTheirKey) {
  spec::JobSpec job = FullOnHost();
  job.parallelism.offload_optimizer = false;
  job.parallelism.offload_param = true;
  job.training.mode = spec::Mode::kLora;
  const auto plan = MakePlan(OnHost(job, 10));
  EXPECT_THAT(std::string(plan.status().message()),
              AllOf(HasSubstr("hyperparameters.parallelism.offload_param = true needs 13.9 GB"),
                    HasSubstr("(weights 13.9 GB)"), HasSubstr("offload_param = false"),
                    Not(HasSubstr("optimizer"))));
}

// With full fine-tuning a single key would be refused, or leave the weights where they do not fit.
TEST(HostMemoryTest, TheLastAdviceTurnsOffBothKeysWhereBothAsk) {
  spec::JobSpec job = FullOnHost();
  job.parallelism.offload_param = true;
  const std::string message(MakePlan(OnHost(job, 10)).status().message());
  EXPECT_THAT(message, AllOf(HasSubstr("offload_optimizer = true with offload_param = true needs"),
                             HasSubstr("What would fit: "),
                             HasSubstr("offload_optimizer and offload_param = false")));
  job.training.mode = spec::Mode::kLora;
  EXPECT_THAT(std::string(MakePlan(OnHost(job, 10)).status().message()),
              HasSubstr("offload_optimizer and offload_param = false"));
}

TEST(HostMemoryTest, TooLittleIsRefusedWithTheKeyTheBytesAndWhatFits) {
  const absl::Status refused = MakePlan(OnHost(FullOnHost(), 60)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(
      std::string(refused.message()),
      AllOf(HasSubstr("hyperparameters.parallelism.offload_optimizer = true needs 98.6 GB"),
            HasSubstr("(master weights 32.8 GB, optimizer states 65.5 GB, buffers 268.4 MB)"),
            HasSubstr("has 60.0 GB left for each"),
            HasSubstr("optimizer = \"adamw_8bit\" (49.7 GB)"),
            HasSubstr("or offload_optimizer = false"), Not(HasSubstr("\"adamw_bf16\" ("))));
  EXPECT_TRUE(MakePlan(OnHost(FullOnHost(), 100)).ok());
  // A server that does not know the host's memory does not check it.
  EXPECT_TRUE(MakePlan(OnHost(FullOnHost(), 0)).ok());
}

TEST(HostMemoryTest, RanksOfANodeShareItsMemory) {
  EXPECT_EQ(HostBytesOfRank(100'000'000'000, 4), 20'000'000'000);
  EXPECT_EQ(HostBytesOfRank(1'000'000'000, 4), 1);
}

// Compared with states in bf16 on the GPU, at the peak.
TEST(HostMemoryTest, AFullFineTuneOf8BTakesFarLessOfTheGpuAndMostOfTheTime) {
  const auto offloaded = MakePlan(OnHost(FullOnHost(), 130));
  spec::JobSpec job = FullOnHost();
  job.parallelism.offload_optimizer = false;
  job.hyperparameters.optimizer = spec::Optimizer::kAdamWBf16;
  job.hyperparameters.master_weights = spec::MasterWeights::kBf16;
  const auto resident = MakePlan(OnHost(job, 0));
  ASSERT_TRUE(offloaded.ok()) << offloaded.status();
  ASSERT_TRUE(resident.ok()) << resident.status();
  EXPECT_LT(offloaded->memory.resident() + 32'000'000'000, resident->memory.resident());
  EXPECT_GT(offloaded->tokens_per_second, 0.8 * resident->tokens_per_second);
  EXPECT_LT(offloaded->tokens_per_second, resident->tokens_per_second);
  EXPECT_THAT(Describe(*offloaded, FullOnHost(), 36), HasSubstr("98.6 GB of host memory"));
}

}  // namespace
}  // namespace sft::plan
