#include "common/plan/memory.h"

#include <gtest/gtest.h>

#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

// One block of 16384 quantised elements' worth, so that every figure can be checked by hand.
std::vector<Unit> SmallUnits() {
  return {{{{"embedding", 1000, false, false, false}}},
          {{{"linear", 20000, false, true, false, 0, true},
            {"a", 5000, true, false, true},
            {"b", 3001, true, false, true}}}};
}

spec::JobSpec Job(spec::Sharding sharding, int ranks) {
  spec::JobSpec job;
  job.compute.gpu_count = ranks;
  job.parallelism.sharding = sharding;
  job.parallelism.compute_type = spec::ComputeType::kBf16;
  return job;
}

TEST(MemoryTest, ReplicasHoldEverything) {
  const Memory m = PlanMemory(SmallUnits(), Job(spec::Sharding::kDdp, 4), Device::kGpu);
  // Two cut units of 16384: codes, a byte for each 64, and one fp32 for each 256 of those.
  EXPECT_EQ(m.frozen_weights, 1000 * 2 + 2 * (8192 + 256 + 4));
  EXPECT_EQ(m.trained_weights, 8001 * 2);
  EXPECT_EQ(m.master_weights, 8001 * 4);
  EXPECT_EQ(m.gradients, 8001 * 4);
  EXPECT_EQ(m.optimizer, 8001 * 8);
  EXPECT_EQ(m.weights(), m.frozen_weights + m.trained_weights + m.master_weights);
  EXPECT_EQ(m.total(), m.weights() + m.gradients + m.optimizer);
}

TEST(MemoryTest, Zero2CutsGradientsAndStates) {
  const Memory m = PlanMemory(SmallUnits(), Job(spec::Sharding::kZero2, 4), Device::kGpu);
  EXPECT_EQ(m.frozen_weights, 1000 * 2 + 2 * (8192 + 256 + 4));
  EXPECT_EQ(m.trained_weights, 8001 * 2);
  EXPECT_EQ(m.master_weights, 2001 * 4);  // ceil(8001 / 4)
  EXPECT_EQ(m.gradients, 2001 * 4);
  EXPECT_EQ(m.optimizer, 2001 * 8);
}

TEST(MemoryTest, FullShardCutsWeightsToo) {
  const Memory m = PlanMemory(SmallUnits(), Job(spec::Sharding::kFullShard, 2), Device::kGpu);
  EXPECT_EQ(m.frozen_weights, 500 * 2 + 1 * (8192 + 256 + 4));
  EXPECT_EQ(m.trained_weights, 4001 * 2);
  EXPECT_EQ(m.gradients, 4001 * 4);
}

TEST(MemoryTest, Zero1CutsStatesAlone) {
  const Memory m = PlanMemory(SmallUnits(), Job(spec::Sharding::kZero1, 4), Device::kGpu);
  EXPECT_EQ(m.trained_weights, 8001 * 2);
  EXPECT_EQ(m.master_weights, 2001 * 4);
  EXPECT_EQ(m.gradients, 8001 * 4);
  EXPECT_EQ(m.optimizer, 2001 * 8);
}

TEST(MemoryTest, HybridShardCutsOverTheGpusOfANode) {
  spec::JobSpec job = Job(spec::Sharding::kHybridShard, 8);
  job.compute.nodes = 4;
  job.compute.gpus_per_node = 2;
  const Memory hybrid = PlanMemory(SmallUnits(), job, Device::kGpu);
  const Memory full = PlanMemory(SmallUnits(), Job(spec::Sharding::kFullShard, 2), Device::kGpu);
  EXPECT_EQ(hybrid.weights(), full.weights());
  EXPECT_EQ(hybrid.gradients, full.gradients);
  EXPECT_EQ(hybrid.optimizer, full.optimizer);
}

TEST(MemoryTest, OneTypeForComputeAndMasterNeedsNoCopy) {
  spec::JobSpec job = Job(spec::Sharding::kDdp, 1);
  job.parallelism.compute_type = spec::ComputeType::kAuto;
  EXPECT_EQ(PlanMemory(SmallUnits(), job, Device::kCpu).master_weights, 0);
  EXPECT_EQ(PlanMemory(SmallUnits(), job, Device::kCpu).trained_weights, 8001 * 4);
  job.hyperparameters.master_weights = spec::MasterWeights::kBf16;
  EXPECT_EQ(PlanMemory(SmallUnits(), job, Device::kGpu).master_weights, 0);
}

TEST(MemoryTest, ScalesWithoutDoubleQuantisationAreFp32) {
  std::vector<Unit> units = SmallUnits();
  units[1].parameters[0].double_quant = false;
  EXPECT_EQ(PlanMemory(units, Job(spec::Sharding::kDdp, 1), Device::kGpu).frozen_weights,
            1000 * 2 + 2 * (8192 + 256 * 4));
}

TEST(MemoryTest, EightBitsHaveAByteAnElementAndAScaleARow) {
  std::vector<Unit> units = SmallUnits();
  units[1].parameters[0].rows = 100;
  spec::JobSpec job = Job(spec::Sharding::kDdp, 1);
  job.quantization.bits = 8;
  // 79 cut units of 256.
  EXPECT_EQ(PlanMemory(units, job, Device::kGpu).quantized_weights, 79 * 256 + 100 * 4);
  job.compute.gpu_count = 4;
  job.parallelism.sharding = spec::Sharding::kFullShard;
  EXPECT_EQ(PlanMemory(units, job, Device::kGpu).quantized_weights, 20 * 256 + 100 * 4);
}

TEST(MemoryTest, OptimizersDifferInTheirStates) {
  spec::JobSpec job = Job(spec::Sharding::kDdp, 1);
  job.hyperparameters.optimizer = spec::Optimizer::kAdamWBf16;
  EXPECT_EQ(PlanMemory(SmallUnits(), job, Device::kGpu).optimizer, 8001 * 4);
  job.hyperparameters.optimizer = spec::Optimizer::kAdamW8bit;
  // a: 5000 bytes and ceil(5000 / 256) = 20 scales, twice; b is small and keeps fp32.
  EXPECT_EQ(PlanMemory(SmallUnits(), job, Device::kGpu).optimizer, 2 * (5000 + 20 * 4) + 3001 * 8);
}

TEST(MemoryTest, AThirtyTwoBillionBaseInFourBitsIsNineteenGigabytes) {
  spec::JobSpec job = Job(spec::Sharding::kZero2, 4);
  job.training.use_qlora = true;
  const auto units = MakeUnits(Qwen3Of32B(), job);
  ASSERT_TRUE(units.ok());
  const Memory m = PlanMemory(*units, job, Device::kGpu);
  // 31.2e9 elements * 4.127 bits and two tables of 0.78e9 in bf16.
  EXPECT_NEAR(static_cast<double>(m.frozen_weights), 19.2e9, 0.1e9);
}

TEST(MemoryTest, AThirtyTwoBillionBaseInEightBitsIsThirtyFourGigabytes) {
  spec::JobSpec job = Job(spec::Sharding::kZero2, 4);
  job.training.use_qlora = true;
  job.quantization.bits = 8;
  const auto units = MakeUnits(Qwen3Of32B(), job);
  ASSERT_TRUE(units.ok());
  // 31.2e9 elements of a byte, and two tables of 0.78e9 in bf16.
  EXPECT_NEAR(static_cast<double>(PlanMemory(*units, job, Device::kGpu).frozen_weights), 34.3e9,
              0.1e9);
}

TEST(MemoryTest, ItemsSumToTheTotal) {
  const Memory m = PlanMemory(SmallUnits(), Job(spec::Sharding::kDdp, 1), Device::kGpu);
  int64_t sum = 0;
  for (const MemoryItem& item : Items(m)) sum += item.bytes;
  EXPECT_EQ(sum, m.total());
}

}  // namespace
}  // namespace sft::plan
