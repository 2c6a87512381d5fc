#include <gtest/gtest.h>

#include "common/io/file.h"
#include "common/plan/layout.h"
#include "common/plan/plan.h"
#include "common/spec/layout.h"
#include "common/spec/resolve.h"
#include "tests/unit/common/plan/shapes.h"

// Checks the job files of configs/ on the GPUs that they name.

namespace sft::plan {
namespace {

ModelShape Qwen2Of14B() {
  return {.family = "qwen2",
          .hidden = 5120,
          .layers = 48,
          .heads = 40,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 13824,
          .vocab = 152064};
}

ModelShape Qwen2Of72B() {
  return {.family = "qwen2",
          .hidden = 8192,
          .layers = 80,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 29568,
          .vocab = 152064};
}

ModelShape Parsed(const char* config) {
  const auto model = ParseModelConfig(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : ModelConfig();
}

ModelShape Qwen2Of7B() {
  return Parsed(R"({"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
      "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
      "vocab_size": 152064, "max_position_embeddings": 32768})");
}

ModelShape LlamaOf1B() {
  return Parsed(R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
      "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
      "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true,
      "max_position_embeddings": 131072})");
}

ModelShape Mistral7B() {
  return Parsed(R"({"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
      "vocab_size": 32768, "sliding_window": null, "max_position_embeddings": 32768})");
}

ModelShape Gemma27B() {
  return Parsed(R"({"model_type": "gemma3", "text_config": {"hidden_size": 5376,
      "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32,
      "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168,
      "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}})");
}

ModelShape Gpt2() { return Parsed(R"({"model_type": "gpt2"})"); }
ModelShape GptOss20B() {
  return Parsed(R"({"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32,
      "quantization_config": {"quant_method": "mxfp4"}})");
}
ModelShape DialoGptMedium() {
  return Parsed(R"({"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16})");
}

struct ConfigFile {
  const char* name;
  const char* file;
  ModelShape (*shape)();
  double gigabytes;  // free on such a GPU

  friend void PrintTo(const ConfigFile& c, std::ostream* out) { *out << c.name; }
};

class ConfigFilesTest : public ::testing::TestWithParam<ConfigFile> {};

TEST_P(ConfigFilesTest, TheJobFitsAndKeepsItsBatch) {
  const ConfigFile& file = GetParam();
  const auto text = io::ReadFile(std::string(SFT_SOURCE_DIR "/configs/") + file.file);
  ASSERT_TRUE(text.ok()) << text.status();
  const spec::Resolution resolved = spec::Resolve(*text, file.file, {});
  ASSERT_TRUE(resolved.ok());
  const spec::JobSpec& job = resolved.spec;
  const int64_t memory = AllocatorBytes(job, static_cast<int64_t>(file.gigabytes * 1e9), false);
  const auto plan = MakePlan(
      {file.shape(), WithPrecision({file.shape(), job, NearestGpu(job.compute.gpu_type), memory}),
       NearestGpu(job.compute.gpu_type), memory});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->memory.reserved(), memory);
  EXPECT_EQ(plan->execution.rows * plan->execution.micro_batches * job.data_ranks(),
            job.hyperparameters.global_batch);
  EXPECT_GT(plan->tokens_per_second, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigFilesTest,
    ::testing::Values(
        ConfigFile{"Qwen14BOnTwoRtx4090", "qlora_14b_2xrtx4090.toml", Qwen2Of14B, 25.2},
        ConfigFile{"Llama70BOnFourH200", "qlora_70b_4xh200.toml", LlamaOf70B, 149.5},
        ConfigFile{"Qwen32BOnFourH100", "multi_gpu_qlora_4xh100.toml", Qwen3Of32B, 84.5},
        ConfigFile{"Qwen7BOnTwoRtx4090", "qlora_7b_2xrtx4090.toml", Qwen2Of7B, 25.2},
        ConfigFile{"Mistral7BOnAnH100", "qlora_mistral_7b_1xh100.toml", Mistral7B, 84.5},
        ConfigFile{"Gemma27BOnTwoH100", "qlora_gemma3_27b_2xh100.toml", Gemma27B, 84.5},
        ConfigFile{"Gemma27BOnTwoA100", "qlora_gemma3_27b_2xa100.toml", Gemma27B, 84.5},
        ConfigFile{"Gemma27BOnTwoH200", "qlora_gemma3_27b_2xh200.toml", Gemma27B, 149.5},
        ConfigFile{"GptOssOnAnA100", "lora_gpt_oss_20b_1xa100.toml", GptOss20B, 84.5},
        ConfigFile{"GptOssOnFourA100", "lora_gpt_oss_20b_4xa100.toml", GptOss20B, 84.5},
        ConfigFile{"GptOssExpertsOnAnH200", "lora_experts_gpt_oss_20b_1xh200.toml", GptOss20B,
                   149.5},
        ConfigFile{"GptOssFullOnFourA100", "full_gpt_oss_20b_4xa100.toml", GptOss20B, 84.5},
        ConfigFile{"GptOssOffloadedOnFourA100", "full_offload_gpt_oss_20b_4xa100.toml", GptOss20B,
                   84.5},
        ConfigFile{"Qwen8BOnDocumentsOnAnH100", "dapt_8b.toml", Qwen3Of8B, 84.5},
        ConfigFile{"Gpt2OnAnH100", "lora_gpt2_1xh100.toml", Gpt2, 84.5},
        ConfigFile{"DialoGptOnAnH100", "dialogpt_medium_1xh100.toml", DialoGptMedium, 84.5},
        ConfigFile{"DialoGptOnTwoH100", "dialogpt_medium_2xh100.toml", DialoGptMedium, 84.5},
        ConfigFile{"DialoGptAdaptersOnAnH100", "lora_dialogpt_medium_1xh100.toml", DialoGptMedium,
                   84.5},
        ConfigFile{"DialoGptAdaptersOnTwoH100", "lora_dialogpt_medium_2xh100.toml", DialoGptMedium,
                   84.5},
        ConfigFile{"SftPlayGemma27BOnTwoH100", "multi_gpu_config.yaml", Gemma27B, 84.5},
        ConfigFile{"SftPlayQwen7BOnTwoH100", "run_bnb.yaml", Qwen2Of7B, 84.5},
        ConfigFile{"SftPlayQwen14BOnTwoRtx4090", "rtx4090_sli.yaml", Qwen2Of14B, 25.2},
        ConfigFile{"SftPlayGemma27BOnTwoA100", "a100_pair.yaml", Gemma27B, 84.5},
        ConfigFile{"SftPlayLlama70BOnFourH200", "h200_quad.yaml", LlamaOf70B, 149.5},
        ConfigFile{"UnslothLlama1BOnTwoH100", "run_unsloth.yaml", LlamaOf1B, 84.5},
        ConfigFile{"Gemma27BOnTwoNodesOfTwoH100", "nodes_gemma3_27b_2x2xh100.yaml", Gemma27B, 84.5},
        ConfigFile{"UnslothLlama1BOnTwoNodesOfFourH100", "nodes_unsloth_2x4xh100.yaml", LlamaOf1B,
                   84.5},
        ConfigFile{"Llama70BInStagesOnFourA100", "pipeline_70b_4xa100.toml", LlamaOf70B, 84.5},
        ConfigFile{"Llama70BInPartsOnFourA100", "tensor_70b_4xa100.toml", LlamaOf70B, 84.5},
        ConfigFile{"Qwen72BShardedOnFourA100", "fsdp_72b_4xa100.toml", Qwen2Of72B, 84.5},
        ConfigFile{"Qwen14BBalancedOnTwoRtx4090", "device_map_balanced_2xrtx4090.toml", Qwen2Of14B,
                   25.2},
        ConfigFile{"Qwen14BSequentialOnTwoRtx4090", "device_map_sequential_2xrtx4090.toml",
                   Qwen2Of14B, 25.2},
        ConfigFile{"Llama1BByTableOnTwoRtx4090", "device_map_custom_2xrtx4090.toml", LlamaOf1B,
                   25.2},
        ConfigFile{"Qwen32BFullOnEightH100", "multi_gpu_fft_8xh100.toml", Qwen3Of32B, 84.5}),
    [](const auto& info) { return std::string(info.param.name); });

// A file's plan on GPUs of so many gigabytes, in the layout that it names.
struct FilePlan {
  spec::JobSpec job;
  Plan plan;
};

FilePlan PlanOfFile(const char* file, const ModelShape& shape, double gigabytes) {
  const auto text = io::ReadFile(std::string(SFT_SOURCE_DIR "/configs/") + file);
  EXPECT_TRUE(text.ok()) << text.status();
  FilePlan made{.job = spec::Resolve(*text, file, {}).spec};
  PlanInput input{.shape = shape, .job = made.job, .gpu = NearestGpu(made.job.compute.gpu_type)};
  input.memory_bytes = AllocatorBytes(made.job, static_cast<int64_t>(gigabytes * 1e9), false);
  auto plan = MakePlan(input);
  EXPECT_TRUE(plan.ok()) << file << plan.status();
  if (plan.ok()) made.plan = *std::move(plan);
  return made;
}

TEST(DeviceMapFilesTest, EachFormPlacesLayersAsNamed) {
  const auto stages = [](const char* file, const ModelShape& shape) {
    return PlanOfFile(file, shape, 25.2).plan.execution.stages;
  };
  const StageMap balanced = stages("device_map_balanced_2xrtx4090.toml", Qwen2Of14B());
  ASSERT_EQ(balanced.stages, 2);
  EXPECT_NEAR(balanced.begins[1], 25, 1) << "embedding and 24 layers";
  const StageMap sequential = stages("device_map_sequential_2xrtx4090.toml", Qwen2Of14B());
  ASSERT_EQ(sequential.stages, 2);
  EXPECT_GT(sequential.begins[1], balanced.begins[1] + 3) << "the first is filled";
  const StageMap custom = stages("device_map_custom_2xrtx4090.toml", LlamaOf1B());
  EXPECT_EQ(custom.ToText(), "layers 0-9 | 10-15 + head");
}

TEST(DeviceMapFilesTest, AutoAsksThePlanWhichDividesWhatNoGpuHolds) {
  constexpr char kFile[] = "device_map_auto_2xrtx4090.toml";
  const auto text = io::ReadFile(std::string(SFT_SOURCE_DIR "/configs/") + kFile);
  ASSERT_TRUE(text.ok()) << text.status();
  const std::vector<spec::Override> overrides;
  const spec::ResolveOptions options;
  const spec::Resolution resolved = spec::Resolve(*text, kFile, overrides, options);
  ASSERT_FALSE(spec::NamesLayout(resolved));
  std::vector<spec::JobSpec> jobs;
  for (const spec::Layout& layout : spec::LayoutsFor(resolved.spec.compute)) {
    const spec::Resolution other =
        spec::InLayout({*text, kFile, overrides, options}, resolved, layout);
    if (other.ok()) jobs.push_back(other.spec);
  }
  const GpuRates& gpu = NearestGpu("RTX4090");
  const auto planned = ChooseLayout(Qwen2Of14B(), gpu, 25'200'000'000, jobs);
  ASSERT_EQ(planned.size(), 2u);
  const spec::Layout chosen = spec::LayoutOf(jobs[planned[0].job]);
  EXPECT_NE(chosen, spec::Layout()) << "the model is larger than a GPU";
  EXPECT_GT(planned[0].tokens_per_second, 0);
  // On larger GPUs each has the whole model.
  const auto larger = ChooseLayout(Qwen2Of14B(), gpu, 84'500'000'000, jobs);
  ASSERT_FALSE(larger.empty());
  EXPECT_EQ(spec::LayoutOf(jobs[larger[0].job]), spec::Layout());
}

}  // namespace
}  // namespace sft::plan
