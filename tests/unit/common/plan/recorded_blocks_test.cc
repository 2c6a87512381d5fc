// Tests which jobs' blocks a plan records as CUDA graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "common/plan/plan.h"
#include "tests/unit/common/plan/jobs.h"
#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

struct Launched {
  const char* name;
  ModelShape shape;
  int64_t rows, tokens;
  bool graphs;

  friend void PrintTo(const Launched& l, std::ostream* out) { *out << l.name; }
};

class LaunchedTest : public ::testing::TestWithParam<Launched> {};

TEST_P(LaunchedTest, BlocksAreRecordedWhereLaunchesHoldThemBack) {
  const Launched& each = GetParam();
  const auto plan = MakePlan(Input(Qlora(each.rows, 8, each.tokens), 79, each.shape));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->execution.graphs, each.graphs) << Describe(*plan, Qlora(1, 1, 1), 1);
}

INSTANTIATE_TEST_SUITE_P(
    OnOneH100, LaunchedTest,
    ::testing::Values(Launched{"SmallModelShortRow", Qwen3Of600M(), 1, 2048, true},
                      Launched{"SmallModelEightRows", Qwen3Of600M(), 8, 2048, false},
                      Launched{"SmallestModel", SmolLm2(), 1, 2048, true},
                      Launched{"SmallestModelTwoRows", SmolLm2(), 2, 2048, true},
                      Launched{"LargeModel", Qwen3Of8B(), 8, 2048, false},
                      Launched{"LargeModelOneRow", Qwen3Of8B(), 1, 2048, false}),
    [](const auto& info) { return std::string(info.param.name); });

spec::JobSpec SmallFull() {
  spec::JobSpec job = Qlora(1, 8, 1024);
  job.training.mode = spec::Mode::kFullFinetune;
  job.training.use_qlora = false;
  job.quantization.bits = 0;
  return job;
}

TEST(RecordedBlocksTest, RecordedBlocksTakeMemoryInsteadOfLaunches) {
  const spec::JobSpec job = SmallFull();
  const auto plan = MakePlan(Input(job, 79, SmolLm2()));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(plan->execution.graphs);
  EXPECT_THAT(Describe(*plan, job, 30), HasSubstr(", graphs"));
  const auto problem = MakeProblem(SmolLm2(), job, 1024);
  ASSERT_TRUE(problem.ok()) << problem.status();
  ExecutionPlan without = plan->execution;
  without.graphs = false;
  const PeakMemory eager = PredictMemory(*problem, without);
  EXPECT_GE(plan->memory.graphs, eager.logits);
  EXPECT_GE(plan->memory.reserved(), eager.reserved() + plan->memory.graphs);
  EXPECT_LT(plan->time.launches, PredictTime(*problem, without, *FindGpu("H100")).launches);
}

TEST(RecordedBlocksTest, MicroBatchesOfRecordedBlocksArePadded) {
  const auto problem = MakeProblem(SmolLm2(), SmallFull(), 1000);
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(MicroBatchTokens(*problem, {.rows = 1}), 1000);
  EXPECT_EQ(MicroBatchTokens(*problem, {.rows = 1, .graphs = true}), 1024);
  EXPECT_EQ(MicroBatchTokens(*problem, {.rows = 3, .graphs = true}), 3072);
}

TEST(RecordedBlocksTest, BlocksThatVaryBetweenMicroBatchesAreNotRecorded) {
  const auto records = [](const spec::JobSpec& job, double gigabytes = 79) {
    const auto plan = MakePlan(Input(job, gigabytes, SmolLm2()));
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() && plan->execution.graphs;
  };
  EXPECT_TRUE(records(SmallFull()));
  EXPECT_FALSE(records(SmallFull(), 3.0)) << "no memory for it";
  spec::JobSpec job = SmallFull();
  job.compute.gpu_count = job.compute.gpus_per_node = 2;
  for (const auto& [sharding, recorded] :
       {std::pair(spec::Sharding::kDdp, true), std::pair(spec::Sharding::kZero1, true),
        std::pair(spec::Sharding::kZero2, false), std::pair(spec::Sharding::kFullShard, false),
        std::pair(spec::Sharding::kHybridShard, false)}) {
    job.parallelism.sharding = sharding;
    EXPECT_EQ(records(job), recorded) << static_cast<int>(sharding);
  }
  job = SmallFull();
  job.parallelism.offload_optimizer = true;
  EXPECT_FALSE(records(job));
  job = Qlora(1, 8, 1024);
  EXPECT_TRUE(records(job));
  job.lora.dropout = 0.05;
  EXPECT_FALSE(records(job));
  job = Qlora(1, 8, 1024);
  job.parallelism.compute_type = spec::ComputeType::kFp32;
  EXPECT_FALSE(records(job)) << "plain products";
}

}  // namespace
}  // namespace sft::plan
