#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kKeys = "hyperparameters.parallelism.";

std::string OnGpus(int gpus, std::string_view keys) {
  return Minimal(fmt::format("gpu_count = {}\n{}", gpus, keys));
}

std::string Stages(int stages, std::string_view more = "") {
  return fmt::format("[hyperparameters.parallelism]\npipeline_parallel_size = {}\n{}\n", stages,
                     more);
}

JobSpec Resolved(const std::string& text, const std::vector<Override>& overrides = {}) {
  const Resolution r = ResolveText(text, overrides);
  EXPECT_TRUE(r.ok()) << Describe(r.problems);
  return r.spec;
}

TEST(PipelineTest, StagesShareTheRowsOfARank) {
  const JobSpec job = Resolved(OnGpus(8, Stages(4) + "[hyperparameters]\nper_device_batch = 2\n"
                                                     "gradient_accumulation_steps = 5"));
  EXPECT_EQ(job.parallelism.pipeline_parallel_size, 4);
  EXPECT_EQ(job.data_ranks(), 2);
  EXPECT_EQ(job.hyperparameters.global_batch, 2 * 2 * 5);
  const JobSpec derived =
      Resolved(OnGpus(8, Stages(4) + "[hyperparameters]\nper_device_batch = 2\nglobal_batch = 24"));
  EXPECT_EQ(derived.hyperparameters.gradient_accumulation_steps, 6);
}

TEST(PipelineTest, EachStageMayBeShardedOverItsGpus) {
  EXPECT_EQ(Resolved(OnGpus(8, Stages(4, "fsdp = true"))).parallelism.sharding,
            Sharding::kFullShard);
  const Resolution alone = ResolveText(OnGpus(4, Stages(4, "fsdp = true")));
  ASSERT_TRUE(alone.ok()) << Describe(alone.problems);
  EXPECT_EQ(alone.spec.parallelism.sharding, Sharding::kDdp);
  EXPECT_THAT(Describe(alone.warnings), HasSubstr("leaves each stage one GPU"));
}

TEST(PipelineTest, AFileForSeveralGpusRunsOnOneByAnOverride) {
  const Resolution r = ResolveText(OnGpus(4, Stages(2, "virtual_pipeline_parallel_size = 2")),
                                   {Set("compute.gpu_count", "1")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.pipeline_parallel_size, 1);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("leaves one GPU, which holds all layers"));
}

TEST(DeviceMapTest, BalancedAndSequentialArePipelinesOverTheGpusOfANode) {
  for (const char* word : {"balanced", "sequential"}) {
    const Resolution r =
        ResolveText(OnGpus(4, fmt::format("nodes = 2\n[model]\ndevice_map = \"{}\"", word)));
    ASSERT_TRUE(r.ok()) << Describe(r.problems);
    EXPECT_EQ(r.spec.parallelism.pipeline_parallel_size, 2);
    EXPECT_EQ(r.spec.data_ranks(), 2);
    EXPECT_THAT(r.spec.parallelism.device_map, ElementsAre(word));
    EXPECT_THAT(Describe(r.warnings), HasSubstr("is taken as pipeline_parallel_size = 2"));
  }
}

TEST(DeviceMapTest, AutoIsWhatTheOtherKeysSay) {
  const JobSpec job = Resolved(OnGpus(4, "[model]\ndevice_map = \"auto\""));
  EXPECT_EQ(job.parallelism.pipeline_parallel_size, 1);
  EXPECT_EQ(job.data_ranks(), 4);
}

TEST(DeviceMapTest, WordsAreMetByOneGpuOrByShards) {
  const std::string map = "[model]\ndevice_map = \"balanced\"\n";
  EXPECT_EQ(Resolved(OnGpus(1, map)).parallelism.pipeline_parallel_size, 1);
  for (const char* keys : {"fsdp = true", "deepspeed_stage = 3"}) {
    const JobSpec job =
        Resolved(OnGpus(2, map + "[hyperparameters.parallelism]\n" + std::string(keys)));
    EXPECT_EQ(job.parallelism.pipeline_parallel_size, 1) << keys;
    EXPECT_EQ(job.parallelism.sharding, Sharding::kFullShard) << keys;
  }
}

TEST(DeviceMapTest, AnOverrideOfMapOrShardingTurnsTheOtherOff) {
  const JobSpec stage = Resolved(OnGpus(2, "[model]\ndevice_map = \"balanced\""),
                                 {Set(kKeys + "deepspeed_stage", "1")});
  EXPECT_EQ(stage.parallelism.sharding, Sharding::kZero1);
  EXPECT_EQ(stage.parallelism.pipeline_parallel_size, 1);
  const JobSpec map = Resolved(OnGpus(2, "[hyperparameters.parallelism]\ndeepspeed_stage = 3"),
                               {Set("model.device_map", "balanced")});
  EXPECT_EQ(map.parallelism.sharding, Sharding::kDdp);
  EXPECT_EQ(map.parallelism.pipeline_parallel_size, 2);
}

TEST(DeviceMapTest, ATableNamesTheStages) {
  for (const char* table : {"[model.device_map]", "[device_map]"}) {
    const JobSpec job = Resolved(
        OnGpus(4, std::string(table) + "\n\"model\" = 0\n\"model.layers.1\" = 1\nlm_head = 1\n"));
    EXPECT_EQ(job.parallelism.pipeline_parallel_size, 2);
    EXPECT_THAT(job.parallelism.device_map,
                ElementsAre("model=0", "model.layers.1=1", "lm_head=1"));
  }
}

class PipelineProblemTest : public ::testing::TestWithParam<WrongFile> {};

TEST_P(PipelineProblemTest, IsOneProblemThatSaysWhatWouldBeRight) { ExpectOneProblem(GetParam()); }

const std::string kSize = kKeys + "pipeline_parallel_size", kMapKey = kKeys + "device_map";
const std::string kVirtualSize = kKeys + "virtual_pipeline_parallel_size";
const std::string kTwo = "gpu_count = 2\n" + Stages(2);

INSTANTIATE_TEST_SUITE_P(
    Cases, PipelineProblemTest,
    ::testing::Values(
        WrongFile{"NotAMultiple", "gpu_count = 6\n" + Stages(4), kSize,
                  "pipeline_parallel_size = 3, or gpu_count = 8 would do"},
        WrongFile{"OneGpu", Stages(2), kSize, "does not divide compute.gpu_count = 1"},
        WrongFile{"PiecesOfOneStage",
                  "gpu_count = 2\n[hyperparameters.parallelism]\n"
                  "virtual_pipeline_parallel_size = 2",
                  kVirtualSize, "needs pipeline_parallel_size"},
        WrongFile{"Preferences", kTwo + "[training]\nloss = \"dpo\"", kSize,
                  "does not go with training.loss = dpo"},
        WrongFile{"Fp8", kTwo + "[training]\nmatmul = \"fp8\"", kSize, "use matmul = \"bf16\""},
        WrongFile{"OptimizerOnTheHost", "gpu_count = 2\n" + Stages(2, "offload_optimizer = true"),
                  kSize, "more stages hold less each"},
        WrongFile{"WeightsOnTheHost", "gpu_count = 2\n" + Stages(2, "offload_param = true"), kSize,
                  "offload_param = true"},
        WrongFile{"Hybrid",
                  "gpu_count = 8\nnodes = 2\n" +
                      Stages(2, "fsdp = true\nfsdp_sharding_strategy = \"hybrid_shard\""),
                  kSize, "use \"full_shard\""},
        WrongFile{"Answers",
                  kTwo + "[data]\nval = \"v.jsonl\"\n[training.validation]\n"
                         "predict_with_generate = true",
                  kSize, "a job of kind evaluate"},
        WrongFile{"Word", "gpu_count = 2\n[model]\ndevice_map = \"even\"", kMapKey,
                  "must be \"auto\", \"balanced\", \"sequential\" or a table"},
        WrongFile{"LowZero", "gpu_count = 2\n[model]\ndevice_map = \"balanced_low_0\"", kMapKey,
                  "set \"balanced\""},
        WrongFile{"Cpu", "gpu_count = 2\n[model.device_map]\nmodel = 0\nlm_head = \"cpu\"", kMapKey,
                  "set offload_param = true"},
        WrongFile{"Disk", "gpu_count = 2\n[model.device_map]\nmodel = 0\nlm_head = \"disk\"",
                  kMapKey, "set offload_param = true"},
        WrongFile{"Gap", "gpu_count = 3\n[model.device_map]\nmodel = 0\nlm_head = 2", kMapKey,
                  "names GPU 2 and nothing on GPU 1"},
        WrongFile{"NoNumber", "gpu_count = 2\n[model.device_map]\nmodel = 0\nlm_head = \"x\"",
                  kMapKey, "which is no number of a GPU"},
        WrongFile{"AnotherNumberOfStages",
                  "gpu_count = 4\n[model.device_map]\nmodel = 0\nlm_head = 1\n" + Stages(4),
                  kMapKey, "names 2 GPUs, but"},
        WrongFile{"WordInATable", "gpu_count = 2\n[model]\ndevice_map = [\"auto\", \"model=1\"]",
                  kMapKey, "a word stands alone"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::spec
