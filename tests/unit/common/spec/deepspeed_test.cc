#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::string_view kStageThree = R"({
  "zero_optimization": {
    "stage": 3,  // More aggressive memory saving
    /* the states
       stay on the GPU */
    "cpu_offload": false,
  },
  "bf16": {"enabled": true},
  "gradient_accumulation_steps": "auto",
  "train_batch_size": "auto", // computed
})";

constexpr std::string_view kStageTwo = R"({
  "train_batch_size": 16,
  "gradient_accumulation_steps": 1,
  "fp16": { "enabled": false },
  "bf16": { "enabled": true },
  "zero_optimization": { "stage": 2, "offload_optimizer": { "device": "none" } }
})";

// Sent as by `sftctl submit --deepspeed`, with a job for four GPUs.
Resolution With(std::string_view json, std::string_view rest = "",
                std::vector<Override> overrides = {}) {
  overrides.insert(overrides.begin(),
                   Flag("train.deepspeed_config", std::string(json), "--deepspeed"));
  return ResolveText(Minimal("gpu_count = 4\n" + std::string(rest)), overrides);
}

TEST(DeepspeedTest, CommentsLastCommasAndAutoAreRead) {
  const Resolution r =
      With(kStageThree, "[hyperparameters]\nper_device_batch = 2\ngradient_accumulation_steps = 3");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(Describe(r.warnings), "");
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kFullShard);
  EXPECT_EQ(r.spec.parallelism.compute_type, ComputeType::kBf16);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 3);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 24);
}

TEST(DeepspeedTest, NumbersFillWhatTheJobLeavesOpen) {
  const Resolution r = With(kStageTwo, "[hyperparameters]\nper_device_batch = 4");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kZero2);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 16);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 1);
  EXPECT_EQ(OriginOf(r, "hyperparameters.global_batch"), "DeepSpeed JSON, train_batch_size");
}

TEST(DeepspeedTest, Fp16IsTakenAsBf16) {
  const Resolution r = With(R"({"fp16": {"enabled": true}, "bf16": {"enabled": false}})");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.compute_type, ComputeType::kAuto);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("is taken as bf16 = true"));
}

TEST(DeepspeedTest, BothFormsOfOffloadMoveTheOptimizerToTheHost) {
  for (const std::string_view offload :
       {R"("cpu_offload": true)", R"("offload_optimizer": {"device": "cpu"})"}) {
    const Resolution r =
        With("{\"zero_optimization\": {\"stage\": 2, " + std::string(offload) + "}}");
    ASSERT_TRUE(r.ok()) << Describe(r.problems);
    EXPECT_TRUE(r.spec.parallelism.offload_optimizer);
    EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kZero2);
  }
}

TEST(DeepspeedTest, TheTextMayStandInTheJobFile) {
  const Resolution r = ResolveText(Minimal("gpu_count = 2\n[train]\ndeepspeed_config = '''\n" +
                                           std::string(kStageThree) + "\n'''"));
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kFullShard);
  EXPECT_EQ(TextOf(r, "train.deepspeed_config"),
            "{\"zero_optimization\":{\"stage\":3,\"cpu_offload\":false},\"bf16\":{\"enabled\":true}"
            ",\"gradient_accumulation_steps\":\"auto\",\"train_batch_size\":\"auto\"}");
}

TEST(DeepspeedTest, TheOptimizerBlockIsTheJobsOwnNumbers) {
  const Resolution r = With(R"({"gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 3,
      "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7,
                                                "weight_decay": 0.1}}})");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  const JobSpec::Hyperparameters& h = r.spec.hyperparameters;
  EXPECT_EQ(h.max_grad_norm, 0.5);
  EXPECT_EQ(h.per_device_batch, 3);
  EXPECT_EQ(h.learning_rate, 3e-4);
  EXPECT_EQ(h.adam_beta1, 0.8);
  EXPECT_EQ(h.adam_beta2, 0.95);
  EXPECT_EQ(h.adam_epsilon, 1e-7);
  EXPECT_EQ(h.weight_decay, 0.1);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kDdp);
}

TEST(DeepspeedTest, UnusedSettingsAreNamedWithTheirValues) {
  const Resolution r = With(R"({"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8,
      "contiguous_gradients": true}, "steps_per_print": 10, "scheduler": {"params": {"a": [1]}}})");
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kZero1);
  EXPECT_THAT(Describe(r.warnings),
              AllOf(HasSubstr("zero_optimization.reduce_bucket_size = 500000000.0 is not used"),
                    HasSubstr("zero_optimization.contiguous_gradients = true is not used"),
                    HasSubstr("steps_per_print = 10 is not used"),
                    HasSubstr("scheduler.params.a = [1] is not used")));
}

TEST(DeepspeedTest, AJsonGivenAtSubmitOverridesTheFilesSwitches) {
  for (const char* file : {"fsdp = true", "use_deepspeed = false", "fsdp = false"}) {
    const Resolution r = With(kStageTwo, "[hyperparameters.parallelism]\n" + std::string(file));
    ASSERT_TRUE(r.ok()) << file << Describe(r.problems);
    EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kZero2) << file;
  }
}

TEST(DeepspeedTest, AnExplicitOverrideStandsOverIt) {
  const Resolution r =
      With(kStageTwo, "", {Set("hyperparameters.parallelism.deepspeed_stage", "3")});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kFullShard);
  EXPECT_THAT(Describe(r.warnings), HasSubstr("zero_optimization.stage = 2 of the DeepSpeed JSON "
                                              "is not used"));
}

TEST(DeepspeedTest, AnOverrideOfItsStageIsReported) {
  const std::string p = "hyperparameters.parallelism.";
  for (const auto& [override_, sharding] :
       {std::pair{Set(p + "fsdp", "true"), Sharding::kFullShard},
        std::pair{Set(p + "fsdp_sharding_strategy", "full_shard"), Sharding::kFullShard},
        std::pair{Set(p + "use_deepspeed", "false"), Sharding::kDdp}}) {
    for (const char* file : {"", "use_deepspeed = true", "deepspeed_stage = 2"}) {
      const Resolution r =
          With(kStageTwo, "[hyperparameters.parallelism]\n" + std::string(file), {override_});
      ASSERT_TRUE(r.ok()) << override_.key << Describe(r.problems);
      EXPECT_EQ(r.spec.parallelism.sharding, sharding) << override_.key << file;
      EXPECT_THAT(Describe(r.warnings),
                  HasSubstr(override_.key + " = " + override_.value +
                            " (--set) stands; zero_optimization.stage = 2 of the DeepSpeed JSON "
                            "is not used"));
    }
  }
}

struct Wrong {
  std::string_view name;
  std::string_view json;
  std::string_view rest;
  std::string_view key;
  std::string_view says;
  std::string_view says_too;

  friend void PrintTo(const Wrong& w, std::ostream* out) { *out << w.name; }
};

class DeepspeedProblemTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(DeepspeedProblemTest, IsOneProblemThatNamesBothSides) {
  const Wrong& w = GetParam();
  const Resolution r = With(w.json, w.rest);
  ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
  EXPECT_EQ(r.problems[0].key, w.key);
  EXPECT_THAT(r.problems[0].message, HasSubstr(std::string(w.says)));
  EXPECT_THAT(r.problems[0].message, HasSubstr(std::string(w.says_too)));
}

constexpr std::string_view kConfig = "train.deepspeed_config";
INSTANTIATE_TEST_SUITE_P(
    Cases, DeepspeedProblemTest,
    ::testing::Values(
        Wrong{"Stage", kStageThree, "[hyperparameters.parallelism]\ndeepspeed_stage = 2",
              "hyperparameters.parallelism.deepspeed_stage", "deepspeed_stage = 2 (job.toml:8)",
              "zero_optimization.stage = 3 of the DeepSpeed JSON"},
        Wrong{"Accumulation", kStageTwo, "[hyperparameters]\ngradient_accumulation_steps = 8",
              "hyperparameters.gradient_accumulation_steps", "= 8 (job.toml:8)",
              "gradient_accumulation_steps = 1 of the DeepSpeed JSON"},
        Wrong{"GlobalBatch", kStageTwo, "[hyperparameters]\nglobal_batch = 64",
              "hyperparameters.global_batch", "global_batch = 64 (job.toml:8)",
              "train_batch_size = 16"},
        Wrong{"Product", kStageTwo, "[hyperparameters]\nper_device_batch = 2",
              "hyperparameters.global_batch", "per_device_batch = 2 (job.toml:8)",
              "DeepSpeed JSON, train_batch_size"},
        Wrong{"Bf16", kStageTwo, "[hyperparameters.parallelism]\nbf16 = false",
              "hyperparameters.parallelism.bf16", "bf16 = false (job.toml:8)",
              "bf16.enabled = true of the DeepSpeed JSON"},
        Wrong{"Fp16", R"({"fp16": {"enabled": true}})",
              "[hyperparameters.parallelism]\nbf16 = true", "hyperparameters.parallelism.fp16",
              "fp16 = true (DeepSpeed JSON, fp16.enabled)", "bf16 = true (job.toml:8)"},
        Wrong{"Offload", R"({"zero_optimization": {"stage": 3, "cpu_offload": true}})",
              "[hyperparameters.parallelism]\noffload_optimizer = false",
              "hyperparameters.parallelism.offload_optimizer",
              "offload_optimizer = false (job.toml:8)",
              "zero_optimization.cpu_offload = true of the DeepSpeed JSON"},
        Wrong{"OffloadElsewhere",
              R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}})", "",
              kConfig, "zero_optimization.offload_optimizer.device = \"nvme\"", "or \"cpu\""},
        Wrong{"OffloadParamElsewhere",
              R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})", "",
              kConfig, "zero_optimization.offload_param.device = \"nvme\"", "or \"cpu\""},
        Wrong{"StageType", R"({"zero_optimization": {"stage": "three"}})", "", kConfig,
              "zero_optimization.stage = \"three\"", "a whole number from 0 to 3"},
        Wrong{"StageRange", R"({"zero_optimization": {"stage": 4}})", "", kConfig,
              "zero_optimization.stage = 4", "a whole number from 0 to 3"},
        Wrong{"NotJson", "{\"a\": 1,\n \"b\" 2}", "", kConfig, "is not JSON", "line 2"},
        Wrong{"TwoCommas", "{\"a\": 1,,}", "", kConfig, "is not JSON", "line 1"},
        Wrong{"TwiceTheSameKey", R"({"zero_optimization": {"stage": 2, "stage": 3}})", "", kConfig,
              "\"stage\" stands there twice", "keep one"},
        Wrong{"CutOff", "{\"a\": 1", "", kConfig, "is not JSON", "end of input"},
        Wrong{"APath", "ds_config.json", "", kConfig, "must be the text of a DeepSpeed JSON",
              "--deepspeed FILE"},
        Wrong{"AList", "[{}]", "", kConfig, "must be a JSON object", ""}),
    [](const auto& info) { return std::string(info.param.name); });

// Writing a deep one again would exhaust the stack, comparing all keys of a wide one take half a
// minute.
TEST(DeepspeedTest, ADeepOrWideJsonIsParsedInLinearTime) {
  const Resolution deep =
      With("{\"a\": " + std::string(500'000, '[') + std::string(500'000, ']') + "}");
  ASSERT_EQ(deep.problems.size(), 1u) << Describe(deep.problems);
  EXPECT_EQ(deep.problems[0].message, "is nested more than 100 levels deep (given by --deepspeed)");
  std::string text = "{\"a\": 1";
  for (int i = 0; text.size() < 1'000'000; ++i) text += ",\"k" + std::to_string(i) + "\":1";
  const Resolution wide = With(text + "}");
  ASSERT_TRUE(wide.ok()) << Describe(wide.problems);
  EXPECT_EQ(wide.warnings.size(), 201u);
  EXPECT_THAT(wide.warnings.back().message, HasSubstr("more warnings are left out"));
}

TEST(DeepspeedInTheFileTest, ContradictsTheFilesOwnSwitches) {
  for (const auto& [line, key] :
       {std::pair{"use_deepspeed = false", "hyperparameters.parallelism.use_deepspeed"},
        std::pair{"fsdp = true", "hyperparameters.parallelism.fsdp"}}) {
    const Resolution r =
        ResolveText(Minimal("gpu_count = 2\n[train]\ndeepspeed = '''" + std::string(kStageTwo) +
                            "'''\n[hyperparameters.parallelism]\n" + line));
    ASSERT_EQ(r.problems.size(), 1u) << Describe(r.problems);
    EXPECT_EQ(r.problems[0].key, key);
    EXPECT_THAT(r.problems[0].message, HasSubstr("zero_optimization.stage = 2 of the DeepSpeed"));
  }
}

}  // namespace
}  // namespace sft::spec
