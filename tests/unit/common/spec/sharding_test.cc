#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

const std::string kP = "hyperparameters.parallelism.";

struct Shard {
  std::string_view name;
  std::string_view keys;  // of [hyperparameters.parallelism]
  std::vector<Override> overrides;
  Sharding sharding;

  friend void PrintTo(const Shard& s, std::ostream* out) { *out << s.name; }
};

class ShardingTest : public ::testing::TestWithParam<Shard> {};

TEST_P(ShardingTest, FollowsTheSwitches) {
  const Shard& s = GetParam();
  const Resolution r = ResolveText(
      Minimal("gpu_count = 4\nnodes = 2\n[hyperparameters.parallelism]\n" + std::string(s.keys)),
      s.overrides);
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, s.sharding);
  EXPECT_EQ(Describe(r.warnings), "");
}

std::string Strategy(std::string_view strategy) {
  return "fsdp = true\nfsdp_sharding_strategy = \"" + std::string(strategy) + "\"";
}
const std::string kFullShard = Strategy("full_shard"), kGradOp = Strategy("shard_grad_op"),
                  kHybrid = Strategy("hybrid_shard"), kNoShard = Strategy("no_shard"),
                  kTorchWord = Strategy("SHARD_GRAD_OP");

INSTANTIATE_TEST_SUITE_P(
    Cases, ShardingTest,
    ::testing::Values(
        Shard{"Nothing", "", {}, Sharding::kDdp},
        Shard{"Fsdp", "fsdp = true", {}, Sharding::kFullShard},
        Shard{"FsdpOffIgnoresTheStrategy",
              "fsdp = false\nfsdp_sharding_strategy = \"full_shard\"",
              {},
              Sharding::kDdp},
        Shard{"FullShard", kFullShard, {}, Sharding::kFullShard},
        Shard{"ShardGradOp", kGradOp, {}, Sharding::kZero2},
        Shard{"HybridShard", kHybrid, {}, Sharding::kHybridShard},
        Shard{"NoShard", kNoShard, {}, Sharding::kDdp},
        Shard{"TorchsCapitals", kTorchWord, {}, Sharding::kZero2},
        Shard{"StageNought", "use_deepspeed = true\ndeepspeed_stage = 0", {}, Sharding::kDdp},
        Shard{"StageOne", "use_deepspeed = true\ndeepspeed_stage = 1", {}, Sharding::kZero1},
        Shard{"StageTwo", "use_deepspeed = true\ndeepspeed_stage = 2", {}, Sharding::kZero2},
        Shard{"StageThree", "use_deepspeed = true\ndeepspeed_stage = 3", {}, Sharding::kFullShard},
        Shard{"DeepspeedWithoutStage", "use_deepspeed = true", {}, Sharding::kZero2},
        Shard{"StageAlone", "deepspeed_stage = 1", {}, Sharding::kZero1},
        Shard{"DeepspeedOffIgnoresTheStage",
              "use_deepspeed = false\ndeepspeed_stage = 3",
              {},
              Sharding::kDdp},
        Shard{"FsdpOverDeepspeed",
              "use_deepspeed = true\ndeepspeed_stage = 2",
              {Set(kP + "fsdp", "true")},
              Sharding::kFullShard},
        Shard{"DeepspeedOverFsdp",
              "fsdp = true",
              {Set(kP + "use_deepspeed", "true")},
              Sharding::kZero2},
        Shard{"FsdpOverAStage",
              "deepspeed_stage = 1",
              {Set(kP + "fsdp", "true")},
              Sharding::kFullShard},
        Shard{"StageOverFsdp", kGradOp, {Set(kP + "deepspeed_stage", "3")}, Sharding::kFullShard},
        Shard{"StageOverDeepspeedOff",
              "fsdp = true\nuse_deepspeed = false",
              {Set(kP + "deepspeed_stage", "1")},
              Sharding::kZero1},
        Shard{"StageNoughtOverFsdp",
              "fsdp = true",
              {Set(kP + "deepspeed_stage", "0")},
              Sharding::kDdp},
        Shard{"StrategyOverDeepspeed",
              "use_deepspeed = true\ndeepspeed_stage = 3",
              {Set(kP + "fsdp_sharding_strategy", "shard_grad_op")},
              Sharding::kZero2},
        Shard{"StrategyOverFsdpOff",
              "fsdp = false\nuse_deepspeed = true",
              {Env("TRAIN_FSDP_SHARDING_STRATEGY", "full_shard")},
              Sharding::kFullShard},
        Shard{"DeepspeedOffOverAStage",
              "deepspeed_stage = 3",
              {Set(kP + "use_deepspeed", "false")},
              Sharding::kDdp},
        Shard{"FsdpOffLeavesTheStage",
              "use_deepspeed = true\ndeepspeed_stage = 1",
              {Set(kP + "fsdp", "false")},
              Sharding::kZero1}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ShardingOfOneNodeTest, HybridShardIsFullShardAndSaysSo) {
  const Resolution r =
      ResolveText(Minimal("gpu_count = 4\n[hyperparameters.parallelism]\n" + kHybrid));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kFullShard);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("is full_shard here: compute.nodes = 1"));
}

TEST(ShardingOfOneGpuTest, AFileForSeveralRunsOnOneByAnOverride) {
  const std::string text = Minimal("gpu_count = 4\n[hyperparameters.parallelism]\nfsdp = true");
  const Resolution r = ResolveText(text, {Set("compute.gpu_count", "1")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kDdp);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("fsdp = true (job.toml:8) has no effect"));
}

TEST(ShardingOverridesTest, AreRefusedWhenTheyAskForBoth) {
  const std::vector<Override> fsdp = {Set(kP + "fsdp", "true"),
                                      Set(kP + "fsdp_sharding_strategy", "shard_grad_op")},
                              deepspeed = {Set(kP + "use_deepspeed", "true"),
                                           Set(kP + "deepspeed_stage", "3")};
  for (const Override& one : fsdp) {
    for (const Override& other : deepspeed) {
      const Resolution r = ResolveText(Minimal("gpu_count = 4"), {other, one});
      ASSERT_EQ(r.problems.size(), 1u) << one.key << other.key << Describe(r.problems);
      EXPECT_THAT(r.problems[0].message, HasSubstr(one.key + " = " + one.value));
      EXPECT_THAT(r.problems[0].message, HasSubstr(other.key + " = " + other.value));
    }
  }
}

class ShardingProblemTest : public ::testing::TestWithParam<WrongFile> {};

TEST_P(ShardingProblemTest, IsOneProblemThatSaysWhatWouldBeRight) { ExpectOneProblem(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Cases, ShardingProblemTest,
    ::testing::Values(
        WrongFile{"Both",
                  "gpu_count = 2\n[hyperparameters.parallelism]\nfsdp = true\nuse_deepspeed = true",
                  "hyperparameters.parallelism.fsdp", "exclude each other"},
        WrongFile{"FsdpAndAStage",
                  "gpu_count = 2\n[hyperparameters.parallelism]\nfsdp = true\ndeepspeed_stage = 3",
                  "hyperparameters.parallelism.fsdp",
                  "deepspeed_stage = 3 (job.toml:9) exclude each other"},
        WrongFile{"AStrategyAndDeepspeed",
                  "gpu_count = 2\n[hyperparameters.parallelism]\nfsdp_sharding_strategy = "
                  "\"full_shard\"\nuse_deepspeed = true",
                  "hyperparameters.parallelism.fsdp_sharding_strategy",
                  "use_deepspeed = true (job.toml:9) exclude each other"},
        WrongFile{"UnknownStrategy",
                  "gpu_count = 2\n[hyperparameters.parallelism]\n" + Strategy("half_shard"),
                  "hyperparameters.parallelism.fsdp_sharding_strategy", "\"shard_grad_op\""},
        WrongFile{"StageFour", "gpu_count = 2\n[hyperparameters.parallelism]\ndeepspeed_stage = 4",
                  "hyperparameters.parallelism.deepspeed_stage", "from 0 to 3"},
        WrongFile{"FsdpOnOneGpu", "[hyperparameters.parallelism]\nfsdp = true",
                  "hyperparameters.parallelism.fsdp", "but compute.gpu_count = 1"},
        WrongFile{"StageOnOneGpu", "[zero_optimization]\nstage = 3",
                  "hyperparameters.parallelism.deepspeed_stage", "or ask for more GPUs"},
        WrongFile{"HybridWithOneGpuANode",
                  "gpu_count = 2\nnodes = 2\n[hyperparameters.parallelism]\n" + kHybrid,
                  "hyperparameters.parallelism.fsdp_sharding_strategy", "use \"full_shard\""},
        WrongFile{"OneGpuOfSeveral", "gpu_count = 2\n[train]\nenable_distributed_training = false",
                  "train.enable_distributed_training", "gpu_count = 1 would agree"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
