#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "common/spec/toml_reader.h"
#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

std::string ReadConfig(const std::string& name) {
  std::ifstream in(std::string(SFT_SOURCE_DIR) + "/configs/" + name);
  EXPECT_TRUE(in.good()) << name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Configuration of the daemons lies beside the job files; their own tests load it.
const std::set<std::string> kNotJobs = {"server.toml", "worker.toml"};

TEST(ConfigFilesTest, EveryJobFileResolves) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SFT_SOURCE_DIR "/configs")) {
    const std::string name = entry.path().filename().string();
    if (kNotJobs.contains(name)) continue;
    const Resolution r = Resolve(ReadConfig(name), name, {});
    EXPECT_TRUE(r.ok()) << name << ":\n" << Describe(r.problems);
    ++files;
  }
  EXPECT_GE(files, 6);
}

TEST(ConfigFilesTest, QloraOnFourH100) {
  const Resolution r = Resolve(ReadConfig("multi_gpu_qlora_4xh100.toml"), "q.toml", {});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.warnings.empty()) << Describe(r.warnings);
  EXPECT_TRUE(r.spec.qlora());
  EXPECT_EQ(r.spec.compute.variant, "H100-4x");
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kZero2);
  EXPECT_EQ(r.spec.parallelism.compute_type, ComputeType::kBf16);
  EXPECT_TRUE(r.spec.parallelism.activation_checkpointing);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 16);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 64);
  EXPECT_EQ(r.spec.hyperparameters.learning_rate, 5e-6);
  EXPECT_EQ(r.spec.hyperparameters.sequence_length, 4096);
  EXPECT_EQ(r.spec.hyperparameters.n_epochs, 1);
}

TEST(ConfigFilesTest, AnUnslothScriptOnTwoGpusSaysWhatItsWordsBecome) {
  const Resolution r = Resolve(ReadConfig("run_unsloth.yaml"), "run_unsloth.yaml", {});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_EQ(r.warnings.size(), 3u) << Describe(r.warnings);
  EXPECT_TRUE(r.spec.qlora());
  EXPECT_EQ(r.spec.compute.gpu_count, 2);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 16);
  EXPECT_EQ(r.spec.hyperparameters.lr_scheduler.warmup_steps, 5);
  EXPECT_EQ(r.spec.hyperparameters.optimizer, Optimizer::kAdamW8bit);
  EXPECT_EQ(r.spec.hyperparameters.seed, 3407u);
}

TEST(ConfigFilesTest, TheDocumentsYamlAndJsonSayWhatTheirWordsBecome) {
  const Resolution yaml = Resolve(ReadConfig("multi_gpu_config.yaml"), "multi_gpu_config.yaml", {});
  ASSERT_TRUE(yaml.ok()) << Describe(yaml.problems);
  EXPECT_TRUE(yaml.spec.qlora());
  EXPECT_EQ(yaml.spec.job.name, "multi_gpu_config");
  EXPECT_EQ(yaml.spec.compute.gpu_count, 2);
  EXPECT_EQ(yaml.spec.lora.alpha, 64);
  EXPECT_EQ(yaml.spec.hyperparameters.per_device_batch, 0) << "auto";
  EXPECT_EQ(yaml.spec.parallelism.ddp_bucket_cap_mb, 200);
  EXPECT_TRUE(yaml.spec.training.validation.predict_with_generate);
  EXPECT_EQ(yaml.spec.training.validation.eval_steps, 200);
  // As `TRAIN_BATCH_SIZE=1 TRAIN_GRAD_ACCUM=32 NUM_GPUS=1` before the command.
  const Resolution less = Resolve(ReadConfig("run_bnb.yaml"), "run_bnb.yaml",
                                  {Env("TRAIN_BATCH_SIZE", "1"), Env("TRAIN_GRAD_ACCUM", "32"),
                                   Env("TRAIN_LEARNING_RATE", "2e-4"), Env("NUM_GPUS", "1")});
  ASSERT_TRUE(less.ok()) << Describe(less.problems);
  EXPECT_EQ(less.spec.hyperparameters.global_batch, 32);
  EXPECT_EQ(less.spec.hyperparameters.learning_rate, 2e-4);
  EXPECT_EQ(less.spec.compute.variant, "H100-1x");
  const Resolution json = Resolve(ReadConfig("example_template.json"), "a.json", {});
  ASSERT_TRUE(json.ok()) << Describe(json.problems);
  EXPECT_EQ(json.spec.lora.r, 8);
  EXPECT_EQ(json.spec.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(json.spec.checkpoint.save_strategy, SaveStrategy::kEpoch);
}

TEST(ConfigFilesTest, JobsOfTwoMachinesNameTheirNodesAndNoAddress) {
  const Resolution play = Resolve(ReadConfig("nodes_gemma3_27b_2x2xh100.yaml"), "n.yaml", {});
  ASSERT_TRUE(play.ok()) << Describe(play.problems);
  EXPECT_EQ(play.spec.compute.nodes, 2);
  EXPECT_EQ(play.spec.compute.gpus_per_node, 2);
  EXPECT_EQ(play.spec.compute.gpu_count, 4);
  EXPECT_EQ(play.spec.compute.hang_timeout, 1800);
  EXPECT_EQ(play.spec.compute.nccl_debug, "WARN");
  EXPECT_TRUE(play.spec.compute.preflight);
  const Resolution torchrun = Resolve(ReadConfig("nodes_unsloth_2x4xh100.yaml"), "n.yaml", {});
  ASSERT_TRUE(torchrun.ok()) << Describe(torchrun.problems);
  EXPECT_EQ(torchrun.spec.compute.nodes, 2);
  EXPECT_EQ(torchrun.spec.compute.gpus_per_node, 4);
  EXPECT_EQ(torchrun.spec.compute.gpu_count, 8);
  EXPECT_EQ(torchrun.spec.compute.variant, "H100-4x");
  EXPECT_EQ(torchrun.spec.hyperparameters.global_batch, 64);
}

TEST(ConfigFilesTest, FullFineTuningOnEightH100KeepsItsGlobalBatch) {
  const Resolution r = Resolve(ReadConfig("multi_gpu_fft_8xh100.toml"), "f.toml", {});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_THAT(r.warnings[0].message, ::testing::HasSubstr("= 128, but global_batch is 64"));
  EXPECT_TRUE(r.spec.full_finetune());
  EXPECT_EQ(r.spec.compute.gpu_count, 8);
  EXPECT_EQ(r.spec.parallelism.sharding, Sharding::kFullShard);
  EXPECT_EQ(r.spec.hyperparameters.gradient_accumulation_steps, 8);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 64);
}

// The example says in its comments which of its values are the defaults.
TEST(ConfigFilesTest, ALongRunSpellsOutHowItSurvives) {
  const Resolution r = Resolve(ReadConfig("long_run.toml"), "long_run.toml", {});
  ASSERT_TRUE(r.ok()) << Describe(r.problems);
  EXPECT_TRUE(r.warnings.empty()) << Describe(r.warnings);
  const JobSpec defaults;
  EXPECT_EQ(r.spec.checkpoint.save_strategy, defaults.checkpoint.save_strategy);
  EXPECT_EQ(r.spec.checkpoint.save_minutes, defaults.checkpoint.save_minutes);
  EXPECT_EQ(r.spec.checkpoint.save_total_limit, defaults.checkpoint.save_total_limit);
  EXPECT_EQ(r.spec.compute.on_unreachable, defaults.compute.on_unreachable);
  EXPECT_EQ(r.spec.compute.unreachable_after, defaults.compute.unreachable_after);
  EXPECT_EQ(r.spec.compute.hang_timeout, defaults.compute.hang_timeout);
  EXPECT_EQ(r.spec.compute.max_unknown_restarts, defaults.compute.max_unknown_restarts);
  EXPECT_EQ(r.spec.compute.max_restarts, 20);
  EXPECT_TRUE(r.spec.training.validation.save_best_model_at_end);
  EXPECT_EQ(r.spec.training.validation.early_stopping_patience, 5);
  EXPECT_EQ(r.spec.hyperparameters.global_batch, 64);
}

TEST(ConfigFilesTest, TheTwoGivenFilesHaveFortyAndOneLessKeys) {
  // 41 keys of the QLoRA file; the other has no deepspeed_stage.
  const auto count = [](const std::string& name) {
    int keys = 0;
    const auto read = ReadToml(ReadConfig(name));
    for (const RawEntry& entry : std::get<std::vector<RawEntry>>(read))
      keys += entry.is_table ? 0 : 1;
    return keys;
  };
  EXPECT_EQ(count("multi_gpu_qlora_4xh100.toml"), count("multi_gpu_fft_8xh100.toml") + 1);
}

}  // namespace
}  // namespace sft::spec
