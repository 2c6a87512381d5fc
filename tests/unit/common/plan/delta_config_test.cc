#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/plan/attention_cost.h"
#include "common/plan/checkpoint_names.h"
#include "common/plan/peak_memory.h"
#include "common/plan/step_time.h"
#include "common/plan/tensors.h"
#include "tests/unit/common/plan/jobs.h"

// Models with gated DeltaNets among their layers: what config.json means, names, memory and time.

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

// As published, without what text has no use for.
constexpr char kQwen35Of800M[] = R"({"model_type": "qwen3_5", "tie_word_embeddings": true,
    "text_config": {"attention_bias": false, "attn_output_gate": true, "dtype": "bfloat16",
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3584, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_value_head_dim": 128,
    "max_position_embeddings": 262144, "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
    "num_attention_heads": 8, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "vocab_size": 248320,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
    "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"}},
    "vision_config": {"model_type": "qwen3_5"}})";

ModelConfig DeltaModel(const std::string& config) {
  const auto model = ParseModelConfig(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.value_or(ModelConfig());
}

std::string TextOf(const std::string& more) {
  return R"({"model_type": "qwen3_5_text", "num_hidden_layers": 4)" + more + "}";
}

std::vector<bool> DeltaLayersOf(const ModelConfig& config) {
  std::vector<bool> layers;
  for (int64_t i = 0; i < config.layers; ++i) layers.push_back(config.Layer(i).delta);
  return layers;
}

TEST(DeltaConfigTest, AbsentKeysAreThoseOfTransformers) {
  const ModelConfig model = DeltaModel(R"({"model_type": "qwen3_5_text"})");
  EXPECT_EQ(model.hidden, 4096);
  EXPECT_EQ(model.intermediate, 12288);
  EXPECT_EQ(model.layers, 32);
  EXPECT_EQ(model.heads, 16);
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_EQ(model.head_dim, 256);
  EXPECT_EQ(model.vocab, 248'320);
  EXPECT_EQ(model.max_positions, 32'768);
  EXPECT_EQ(model.norm, NormKind::kRmsOnePlus);
  EXPECT_EQ(model.ropes[0].theta, 10'000);
  EXPECT_EQ(model.ropes[0].rotated, 0.25);
  EXPECT_TRUE(model.output_gate && model.qk_norm == QkNorm::kHeads && !model.tied_head);
  EXPECT_EQ(model.delta.keys(), 2048);
  EXPECT_EQ(model.delta.values(), 4096);
  EXPECT_EQ(model.delta.channels(), 8192);
}

TEST(DeltaConfigTest, EveryFourthLayerIsAttentionOrThoseThatAreNamed) {
  EXPECT_EQ(DeltaLayersOf(DeltaModel(TextOf(""))), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(DeltaLayersOf(DeltaModel(TextOf(R"(, "full_attention_interval": 2)"))),
            (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(DeltaLayersOf(DeltaModel(TextOf(R"(, "layer_types": ["full_attention",
                "linear_attention", "linear_attention", "full_attention"])"))),
            (std::vector<bool>{false, true, true, false}));
}

// What transformers 5.17 counts.
TEST(DeltaConfigTest, ParametersAreThoseOfTransformers) {
  EXPECT_EQ(BaseParameters(DeltaModel(kQwen35Of800M)), 752'393'024);
  EXPECT_EQ(BaseParameters(DeltaModel(R"({"model_type": "qwen3_5_text"})")), 8'953'803'264);
  EXPECT_EQ(BaseParameters(DeltaModel(R"({"model_type": "qwen3_5_text", "hidden_size": 5120,
                "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
                "linear_num_value_heads": 48})")),
            26'895'998'464);
}

TEST(DeltaConfigTest, TensorsHaveTheNamesAndShapesOfPublishedFiles) {
  const ModelConfig model = DeltaModel(kQwen35Of800M);
  EXPECT_EQ(model.max_positions, 262'144);
  EXPECT_EQ(model.ropes[0].theta, 1e7);
  const std::string layer = "model.language_model.layers.0.";
  std::vector<std::pair<std::string, std::vector<int64_t>>> mixer;
  for (const TensorInfo& tensor : BlockTensors(model, 0).tensors) {
    if (tensor.name.find(".linear_attn.") == std::string::npos) continue;
    mixer.emplace_back(tensor.name.substr(layer.size()), tensor.shape);
    EXPECT_EQ(tensor.exact, tensor.name.ends_with("A_log") || tensor.name.ends_with("norm.weight"))
        << tensor.name;
  }
  EXPECT_EQ(mixer, (std::vector<std::pair<std::string, std::vector<int64_t>>>{
                       {"linear_attn.in_proj_qkv.weight", {6144, 1024}},
                       {"linear_attn.in_proj_z.weight", {2048, 1024}},
                       {"linear_attn.in_proj_b.weight", {16, 1024}},
                       {"linear_attn.in_proj_a.weight", {16, 1024}},
                       {"linear_attn.conv1d.weight", {6144, 1, 4}},
                       {"linear_attn.A_log", {16}},
                       {"linear_attn.dt_bias", {16}},
                       {"linear_attn.norm.weight", {128}},
                       {"linear_attn.out_proj.weight", {1024, 2048}}}));
  const TensorUnit attention = BlockTensors(model, 3);
  EXPECT_EQ(attention.tensors[1].name, "model.language_model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(attention.tensors[1].shape, (std::vector<int64_t>{2 * 8 * 256, 1024}));
}

TEST(DeltaConfigTest, FilesMayHoldATowerAndAPredictorOfLaterTokens) {
  const ModelConfig text = DeltaModel(TextOf(R"(, "hidden_size": 64, "vocab_size": 64)"));
  for (const ModelConfig& model : {DeltaModel(kQwen35Of800M), text}) {
    const CheckpointNames names = NamesInFiles(model);
    EXPECT_TRUE(names.MayBeExtra("mtp.layers.0.self_attn.q_proj.weight"));
    EXPECT_TRUE(names.IsOtherPart("mtp.norm.weight"));
    EXPECT_EQ(names.IsOtherPart("mtps.norm.weight"), !model.prefix.empty());
    EXPECT_EQ(names.IsOtherPart("model.visual.patch_embed.proj.weight"), !model.prefix.empty());
  }
}

// PEFT saves either, by the class that transformers loaded.
TEST(DeltaConfigTest, AdaptersMayNameTheDecoderAlone) {
  const std::string prefix = DeltaModel(kQwen35Of800M).prefix;
  EXPECT_EQ(CheckpointModule(prefix, "model.layers.1.mlp.up_proj"),
            "model.language_model.layers.1.mlp.up_proj");
  EXPECT_EQ(CheckpointModule(prefix, "model.embed_tokens"), "model.language_model.embed_tokens");
  for (const char* name :
       {"model.language_model.layers.1.mlp.up_proj", "model.visual.blocks.0.mlp", "lm_head"}) {
    EXPECT_EQ(CheckpointModule(prefix, name), name);
  }
}

TEST(DeltaConfigTest, ErrorsNameTheKey) {
  for (const auto& [more, says] : std::vector<std::pair<std::string, std::string>>{
           {R"(, "linear_num_value_heads": 24)",
            "\"linear_num_value_heads\" 24 is no multiple of 16 key heads"},
           {R"(, "linear_conv_kernel_dim": 3)", "\"linear_conv_kernel_dim\" other than 4"},
           {R"(, "linear_key_head_dim": 4000000000)", "more than any model has"},
           {R"(, "attn_output_gate": false)", "\"attn_output_gate\" false is not supported"},
           {R"(, "hidden_act": "gelu_pytorch_tanh")", "\"hidden_act\" other than silu"},
           {R"(, "layer_types": ["full_attention"])", "\"layer_types\" names 1 layers of 4"},
           {R"(, "layer_types": ["full_attention", "full_attention", "full_attention", "mamba"])",
            "\"layer_types\" has \"mamba\", which is not supported"},
           {R"(, "partial_rotary_factor": 1.5)", "\"partial_rotary_factor\" must be at most 1"},
           {R"(, "partial_rotary_factor": null)", "\"partial_rotary_factor\" is null"},
           {R"(, "rope_parameters": {"rope_type": "llama3", "factor": 4.0})",
            "rope_parameters: \"rope_type\" \"llama3\" is not supported where a part of"}}) {
    const auto model = ParseModelConfig(TextOf(more));
    ASSERT_FALSE(model.ok()) << more;
    EXPECT_THAT(std::string(Message(model.status())), HasSubstr(says));
  }
}

TEST(DeltaJobTest, AdaptersTakeTheLinearsThatAreNamed) {
  const ModelConfig model = DeltaModel(kQwen35Of800M);
  const auto trained = [&](std::vector<std::string> targets) {
    const auto units = MakeUnits(model, Lora(8, std::move(targets)));
    EXPECT_TRUE(units.ok()) << units.status();
    return units.ok() ? CountParameters(*units).trainable : -1;
  };
  const int64_t in = 1024;
  const int64_t deltas =
      int64_t{18} * 8 * ((in + 6144) + (in + 2048) + 2 * (in + 16) + (2048 + in));
  EXPECT_EQ(trained({"in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"}), deltas);
  EXPECT_EQ(trained({"all-linear"}),
            trained({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) +
                deltas);
  spec::JobSpec biases = Lora(8, {"q_proj"});
  biases.lora.bias = spec::Bias::kAll;  // PEFT does not take dt_bias for one
  const auto units = MakeUnits(model, biases);
  ASSERT_TRUE(units.ok()) << units.status();
  for (const Parameter& parameter : units->at(1).parameters) {
    EXPECT_FALSE(parameter.trainable) << parameter.name;
  }
}

TEST(DeltaJobTest, QuantisedAreTheLinears) {
  const auto units = MakeUnits(DeltaModel(kQwen35Of800M), Qlora(1, 1, 512));
  ASSERT_TRUE(units.ok()) << units.status();
  for (const Parameter& parameter : units->at(1).parameters) {
    EXPECT_EQ(parameter.quantized, parameter.name.ends_with("_proj.weight") ||
                                       parameter.name.find("in_proj_") != std::string::npos)
        << parameter.name;
  }
}

Problem DeltaProblem(const ModelShape& shape, const spec::JobSpec& job) {
  auto problem = MakeProblem(shape, job, job.hyperparameters.sequence_length);
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *std::move(problem);
}

TEST(DeltaCostTest, ATokenIsMultipliedWithTheMatricesOfItsLayer) {
  const Problem problem = DeltaProblem(DeltaModel(kQwen35Of800M), Full());
  const int64_t mlp = 3 * 1024 * 3584;
  EXPECT_EQ(problem.blocks[0].weights, mlp + 1024 * (6144 + 2048 + 2 * 16) + 2048 * 1024);
  EXPECT_EQ(problem.blocks[3].weights, mlp + 1024 * (4096 + 2 * 512) + 2048 * 1024);
}

// In bf16, without adapters; what both kinds of layers keep alike is the feed-forward layer's.
TEST(DeltaCostTest, ALayerKeepsWhatItsLevelDoesNotMakeAgain) {
  spec::JobSpec job = Full();
  job.compute.gpu_type = "H100";
  const Problem problem = DeltaProblem(DeltaModel(kQwen35Of800M), job);
  ASSERT_EQ(problem.element_bytes, 2);
  const auto saved = [&](size_t layer, Recompute level) {
    return problem.blocks[layer].saved[static_cast<size_t>(level)];
  };
  const int64_t hidden = 2 * 1024, projected = 2 * (6144 + 2048 + 32), heads = 2 * 2048;
  EXPECT_EQ(saved(0, Recompute::kAll), hidden);
  EXPECT_EQ(saved(0, Recompute::kLinears), hidden + heads);
  EXPECT_EQ(saved(0, Recompute::kMlp), 2 * hidden + 2 * 4 + projected + heads);
  const int64_t norms = saved(0, Recompute::kNothing) - saved(0, Recompute::kNorms);
  EXPECT_EQ(norms, 2 * hidden + 2 * 3584 + 2 * 6144 + heads + 16 * 4)
      << "two norms, the product of gates and ups, convolved rows, gated heads, their deviations";
  // Attention has its statistics too, keeps queries with their gates, and the gated rows.
  const int64_t lse = 4 * 8;
  EXPECT_EQ(saved(3, Recompute::kLinears), hidden + heads + lse);
  EXPECT_EQ(saved(3, Recompute::kMlp), 2 * hidden + 2 * 4 + 2 * (4096 + 2 * 512) + heads + lse);
  EXPECT_EQ(saved(3, Recompute::kNothing) - saved(3, Recompute::kNorms),
            2 * hidden + 2 * 3584 + 2 * (2048 + 512) + heads);
}

TEST(DeltaCostTest, TheRuleTakesTimeByTokensAlone) {
  const ModelConfig model = DeltaModel(kQwen35Of800M);
  const GpuRates& gpu = *FindGpu("H100");
  const auto seconds = [&](int64_t layer, double tokens, int64_t length) {
    return PredictAttention(model, layer, tokens, length, true, gpu);
  };
  EXPECT_EQ(DeltaFlops(model.delta), 16 * 163'840.0);
  EXPECT_EQ(seconds(0, 8192, 1024).forward, seconds(0, 8192, 8192).forward);
  EXPECT_EQ(seconds(0, 8192, 1024).backward, kDeltaBackward * seconds(0, 8192, 1024).forward);
  EXPECT_LT(seconds(3, 8192, 1024).forward, seconds(3, 8192, 8192).forward);
  // For each chunk of 64 tokens that has begun what a GPU's kernels leave to each other: q and k of
  // 16 key heads, of 16 value heads four more such rows, two matrices [64, 64] and two states in
  // bf16, factors in fp32; and four states of all heads.
  const int64_t rows = 64 * 128 * 2, state = 16 * 128 * 128;
  const int64_t chunk =
      16 * (2 * rows + 512) + 16 * (4 * rows + 2 * 64 * 64 * 2 + 512) + 2 * state * 2;
  EXPECT_EQ(AttentionWorkspace(model, 0, 2, 100, true), 2 * 2 * chunk + 4 * state * 4);
  // Many chunks go in parts, with a state between them; a CPU has those of all.
  EXPECT_LT(AttentionWorkspace(model, 0, 1, 65536, true), (int64_t{3} << 29) + 8 * state * 4);
  EXPECT_EQ(AttentionWorkspace(model, 0, 1, 262144, true), 4096 * state * 4);
}

TEST(DeltaCostTest, BlocksAreNotRecorded) {
  const ModelConfig hybrid = DeltaModel(kQwen35Of800M);
  ModelConfig attention = hybrid;
  attention.delta = {};
  for (LayerShape& layer : attention.layer_shapes) layer.delta = false;
  const spec::JobSpec job = Lora(8, {"mlp.up_proj"});
  const ExecutionPlan run;
  EXPECT_TRUE(MayRecord(DeltaProblem(attention, job), run));
  EXPECT_FALSE(MayRecord(DeltaProblem(hybrid, job), run));
}

TEST(DeltaCostTest, JobsArePlanned) {
  for (const spec::JobSpec& job : {Auto(16, 4096), [] {
                                     spec::JobSpec full = Auto(16, 4096);
                                     full.training.mode = spec::Mode::kFullFinetune;
                                     full.training.use_qlora = false;
                                     full.quantization.bits = 0;
                                     return full;
                                   }()}) {
    const auto plan = MakePlan(Input(job, 80, DeltaModel(kQwen35Of800M)));
    ASSERT_TRUE(plan.ok()) << plan.status();
  }
}

}  // namespace
}  // namespace sft::plan
