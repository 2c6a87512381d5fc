#include "common/plan/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/plan/parameters.h"
#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kSizes =
    R"("hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
       "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 64)";

std::string Config(std::string_view type, std::string_view more = "") {
  return "{\"model_type\": \"" + std::string(type) + "\", " + std::string(kSizes) +
         std::string(more) + "}";
}

ModelConfig Parse(std::string_view type, std::string_view more = "") {
  const auto config = ParseModelConfig(Config(type, more));
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(ModelConfig());
}

std::vector<int64_t> WindowsOf(const ModelConfig& config) {
  std::vector<int64_t> windows;
  for (const LayerOptions& layer : config.layer_options) windows.push_back(layer.window);
  return windows;
}

std::vector<int> RopesOf(const ModelConfig& config) {
  std::vector<int> ropes;
  for (const LayerOptions& layer : config.layer_options) ropes.push_back(layer.rope);
  return ropes;
}

TEST(ModelConfigTest, AbsentKeysFollowTheFamily) {
  const ModelConfig llama = Parse("llama");
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_FALSE(llama.tied_head || llama.qkv_bias || llama.output_bias || llama.mlp_bias);
  EXPECT_EQ(llama.qk_norm, QkNorm::kNone);
  const ModelConfig qwen2 = Parse("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  const ModelConfig qwen3 = Parse("qwen3");
  EXPECT_EQ(qwen3.qk_norm, QkNorm::kHeads);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(WindowsOf(Parse("mistral")), std::vector<int64_t>(4, 4096));
}

TEST(ModelConfigTest, PositionScalingExtendsTheLongestRow) {
  EXPECT_EQ(Parse("llama").max_positions, 64);
  EXPECT_EQ(Parse("llama", R"(, "rope_scaling": {"type": "linear", "factor": 4.0})").max_positions,
            256);
  EXPECT_EQ(Parse("qwen2", R"(, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                              "original_max_position_embeddings": 32})")
                .max_positions,
            128);
  EXPECT_EQ(Parse("llama", R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                              "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 8})")
                .max_positions,
            64);
}

TEST(ModelConfigTest, GivenKeysWin) {
  const ModelConfig config =
      Parse("llama", R"(, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": true,
                          "attention_bias": true, "mlp_bias": true)");
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_TRUE(config.tied_head && config.qkv_bias && config.output_bias && config.mlp_bias);
}

TEST(ModelConfigTest, BiasesAreAnOptionWhereTransformersHasOne) {
  EXPECT_FALSE(Parse("mistral", R"(, "attention_bias": true)").qkv_bias);
  EXPECT_FALSE(Parse("qwen3", R"(, "mlp_bias": true)").mlp_bias);
}

TEST(ModelConfigTest, ANullHeadDimIsAbsent) {
  EXPECT_EQ(Parse("mistral", R"(, "head_dim": null)").head_dim, 16);
}

TEST(ModelConfigTest, SlidingWindowsFollowTheFamilysRules) {
  const std::vector<int64_t> none(4, 0);
  EXPECT_EQ(WindowsOf(Parse("mistral", R"(, "sliding_window": null)")), none);
  EXPECT_EQ(WindowsOf(Parse("qwen2", R"(, "sliding_window": 8)")), none);
  EXPECT_EQ(WindowsOf(Parse("qwen2", R"(, "sliding_window": 8, "use_sliding_window": true,
                               "max_window_layers": 3)")),
            (std::vector<int64_t>{0, 0, 0, 8}));
  EXPECT_EQ(WindowsOf(Parse("qwen3", R"(, "sliding_window": 8, "use_sliding_window": true,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                      "full_attention"])")),
            (std::vector<int64_t>{8, 0, 8, 0}));
}

TEST(ModelConfigTest, RotaryScalingIsReadFromBothSpellings) {
  const char* old_style = R"(, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2})";
  const char* new_style =
      R"(, "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5})";
  for (const char* more : {old_style, new_style}) {
    const RopeOptions rope = Parse("llama", more).ropes[0];
    EXPECT_EQ(rope.type, RopeType::kLinear);
    EXPECT_EQ(rope.factor, 2.0);
    EXPECT_EQ(rope.theta, 5e5);
  }
}

TEST(ModelConfigTest, OfTwoObjectsOfRopeParametersTheOlderSpellingCounts) {
  const RopeOptions rope = Parse("llama", R"(, "rope_theta": 5e5, "rope_scaling": {"type": "linear",
      "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 7e5})")
                               .ropes[0];
  EXPECT_EQ(rope.factor, 2.0);
  EXPECT_EQ(rope.theta, 5e5);
  const auto lost = ParseModelConfig(Config("llama", R"(, "rope_scaling": {"type": "linear",
      "factor": 2}, "rope_parameters": {"rope_type": "default", "rope_theta": 7e5})"));
  EXPECT_THAT(std::string(Message(lost.status())),
              HasSubstr("\"rope_scaling\" stands beside rope_parameters"));
  const auto of_layers = ParseModelConfig(Config("gemma3_text", R"(, "rope_scaling": {"type":
      "linear", "factor": 2}, "rope_parameters": {"full_attention": {"rope_type": "default"}})"));
  EXPECT_THAT(std::string(Message(of_layers.status())),
              HasSubstr("write its keys into rope_parameters.full_attention"));
}

TEST(ModelConfigTest, TheOriginalLengthOfTheTopLevelComesFirst) {
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4, "truncate": null,
      "original_max_position_embeddings": 64})";
  const std::string top = R"(, "original_max_position_embeddings": 32)";
  const std::string scaling = R"(, "rope_scaling": )" + yarn;
  const RopeOptions inside = Parse("llama", scaling).ropes[0];
  EXPECT_EQ(inside.original_max_positions, 64);
  EXPECT_FALSE(inside.truncate) << "null is false, no key is true";
  EXPECT_EQ(Parse("llama", scaling + top).ropes[0].original_max_positions, 32);
  const std::string of_layers = R"(, "rope_parameters": {"full_attention": )" + yarn + "}";
  EXPECT_EQ(Parse("olmo3", of_layers + top).ropes[0].original_max_positions, 64)
      << "with a rope for each type of layer, it counts for none";
}

TEST(ModelConfigTest, MistralWithTypesOfLayersIsMinistral) {
  constexpr const char* kTypes = R"(, "sliding_window": 8, "layer_types": ["full_attention",
      "sliding_attention", "full_attention", "sliding_attention"])";
  const ModelConfig model = Parse("mistral", kTypes);
  EXPECT_EQ(model.family, "ministral");
  EXPECT_EQ(WindowsOf(model), (std::vector<int64_t>{0, 8, 0, 8}));
  EXPECT_EQ(WindowsOf(Parse("ministral", R"(, "sliding_window": 8)")),
            (std::vector<int64_t>{8, 8, 8, 8}));
}

TEST(ModelConfigTest, OlderSpellingsOfScaledFamiliesKeepTheirBase) {
  const ModelConfig ministral = Parse("ministral3", R"(, "num_key_value_heads": 2,
      "rope_theta": 5e4, "rope_scaling": {"type": "yarn", "factor": 4,
      "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.5})");
  EXPECT_EQ(ministral.ropes[0].theta, 5e4);
  EXPECT_EQ(ministral.ropes[0].factor, 4.0);
  EXPECT_EQ(ministral.ropes[0].original_max_positions, 64);
  EXPECT_EQ(ministral.ropes[0].query_scaling, 0.5);
  const RopeOptions gpt_oss =
      Parse("gpt_oss", R"(, "num_key_value_heads": 2, "rope_theta": 5e4, "rope_scaling": null)")
          .ropes[0];
  EXPECT_EQ(gpt_oss.type, RopeType::kYarn);
  EXPECT_EQ(gpt_oss.theta, 5e4);
  EXPECT_EQ(Parse("gemma3_text", R"(, "rope_theta": 5e4,
                 "rope_parameters": {"full_attention": {"rope_type": "default"}})")
                .ropes[0]
                .theta,
            5e4);
}

TEST(ModelConfigTest, GranitesScalarsAreOneWhereTheyAreAbsent) {
  const ModelConfig plain = Parse("granite");
  EXPECT_EQ(plain.embedding_scale, 1.0);
  EXPECT_EQ(plain.attention_scale, 1.0);  // not the square root of the head size
  EXPECT_EQ(plain.residual_scale, 1.0);
  EXPECT_EQ(plain.logit_scale, 1.0);
  const ModelConfig scaled =
      Parse("granite", R"(, "embedding_multiplier": 12, "attention_multiplier": 0.015625,
                            "residual_multiplier": 0.22, "logits_scaling": 8)");
  EXPECT_EQ(scaled.embedding_scale, 12.0);
  EXPECT_EQ(scaled.attention_scale, 0.015625);
  EXPECT_EQ(scaled.residual_scale, 0.22);
  EXPECT_EQ(scaled.logit_scale, 0.125);
  EXPECT_EQ(Parse("llama", R"(, "residual_multiplier": 0.22)").residual_scale, 1.0);
}

constexpr std::string_view kFourAttentions =
    R"("attention", "attention", "attention", "attention")";

std::string Granite4(std::string_view layers, std::string_view more = "") {
  return Config("granitemoehybrid", R"(, "shared_intermediate_size": 96, "layer_types": [)" +
                                        std::string(layers) + "]" + std::string(more));
}

TEST(ModelConfigTest, DenseGranite4HasGateAndUpInOneLinear) {
  const auto parsed = ParseModelConfig(Granite4(kFourAttentions, R"(, "num_local_experts": 0,
      "position_embedding_type": "rope", "rope_theta": 1e7, "attention_multiplier": 0.015625,
      "mamba_d_state": 128)"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->intermediate, 96);  // not intermediate_size, which is that of experts
  EXPECT_EQ(parsed->attention_scale, 0.015625);
  EXPECT_EQ(parsed->ropes[0].type, RopeType::kDefault);
  EXPECT_EQ(parsed->ropes[0].theta, 1e7);
  const TensorUnit block = BlockTensors(*parsed, 1);
  std::vector<std::string> linears;
  for (const TensorInfo& tensor : block.tensors) {
    if (tensor.role == TensorRole::kLinear) linears.push_back(tensor.name);
  }
  const std::string layer = "model.layers.1.";
  EXPECT_EQ(linears, (std::vector<std::string>{
                         layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight",
                         layer + "self_attn.v_proj.weight", layer + "self_attn.o_proj.weight",
                         layer + "shared_mlp.input_linear.weight",
                         layer + "shared_mlp.output_linear.weight"}));
  // As transformers 5.17 writes layer_types; without position_embedding_type nothing rotates.
  const auto nope = ParseModelConfig(
      Granite4(R"("full_attention", "full_attention", "full_attention", "full_attention")",
               R"(, "num_local_experts": 0)"));
  ASSERT_TRUE(nope.ok()) << nope.status();
  EXPECT_EQ(nope->ropes[0].type, RopeType::kNone);
}

TEST(ModelConfigTest, WhatGranite4sHybridsHaveIsNamed) {
  const auto problem = [](const std::string& config) {
    return std::string(Message(ParseModelConfig(config).status()));
  };
  EXPECT_THAT(problem(Config("granitemoehybrid")),
              HasSubstr("\"shared_intermediate_size\" is missing"));
  EXPECT_THAT(problem(Config("granitemoehybrid", R"(, "shared_intermediate_size": 128)")),
              HasSubstr("\"layer_types\" is missing, which makes layer 0 \"mamba\", a state-space "
                        "model, which is not supported; of Granite 4.0 the dense models are read, "
                        "whose layers are all attention: granite-4.0-micro, -1b and -350m, not "
                        "those with \"-h-\""));
  EXPECT_THAT(problem(Granite4(R"("attention", "attention", "mamba", "attention")")),
              HasSubstr("\"layer_types\" makes layer 2 \"mamba\""));
  EXPECT_THAT(problem(Granite4(R"("attention")")),
              HasSubstr("\"layer_types\" names 1 layers of 4"));
  EXPECT_THAT(problem(Granite4(kFourAttentions, R"(, "num_local_experts": 62)")),
              HasSubstr("\"num_local_experts\" 62 is not supported: these experts stand beside a "
                        "feed-forward layer of all tokens; of Granite 4.0"));
  EXPECT_THAT(problem(Granite4(kFourAttentions)),
              HasSubstr("\"num_local_experts\" 8 is not supported"));
  EXPECT_THAT(problem(Granite4(kFourAttentions, R"(, "num_local_experts": 0,
                  "position_embedding_type": "alibi")")),
              HasSubstr("\"position_embedding_type\" \"alibi\" is not supported; rope and nope"));
}

TEST(ModelConfigTest, WhatFamiliesDoNotHaveIsRefusedWithWhatWouldWork) {
  const auto problem = [](const std::string& config) {
    return std::string(Message(ParseModelConfig(config).status()));
  };
  EXPECT_THAT(
      problem(Config("llama", R"(, "partial_rotary_factor": 0.5)")),
      HasSubstr("\"partial_rotary_factor\" 0.5 is not supported in this family, whose heads "
                "are rotated whole (1, or no such key); models that rotate a part of each "
                "head are read of phi3, glm4_moe, qwen3_5 and qwen3_next"));
  EXPECT_THAT(problem(Config("llama", R"(, "rope_parameters": {"partial_rotary_factor": 0.25})")),
              HasSubstr("config.json: rope_parameters: \"partial_rotary_factor\" 0.25 is not"));
  EXPECT_THAT(problem(Config("phi3", R"(, "resid_pdrop": 0.1)")),
              HasSubstr("\"resid_pdrop\" 0.1 is not supported: phi3 models are trained without "
                        "dropout of their own; set it to 0 in config.json"));
}

TEST(ModelConfigTest, SomeLayersOfSmolLm3SeeNoPositions) {
  const ModelConfig config = Parse("smollm3");
  EXPECT_EQ(config.ropes[0].theta, 2e6);
  EXPECT_EQ(config.ropes[1].type, RopeType::kNone);
  EXPECT_EQ(RopesOf(config), (std::vector<int>{0, 0, 0, 1}));
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(RopesOf(Parse("smollm3", R"(, "no_rope_layer_interval": 2)")),
            (std::vector<int>{0, 1, 0, 1}));
  const ModelConfig given =
      Parse("smollm3", R"(, "no_rope_layers": [0, 1, 1, 0], "use_sliding_window": true,
                            "sliding_window": 8)");
  EXPECT_EQ(RopesOf(given), (std::vector<int>{1, 0, 0, 1}));
  EXPECT_EQ(WindowsOf(given), (std::vector<int64_t>{8, 0, 0, 8}));
}

TEST(ModelConfigTest, Gemma3HasItsClassDefaultsAndTwoRopes) {
  const auto parsed = ParseModelConfig(R"({"model_type": "gemma3_text"})");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->hidden, 2304);
  EXPECT_EQ(parsed->vocab, 262'208);
  EXPECT_EQ(parsed->pad_token, 0);
  EXPECT_TRUE(parsed->tied_head && parsed->rounds_embedding_scale);
  EXPECT_EQ(parsed->embedding_scale, 48.0);
  EXPECT_EQ(parsed->attention_scale, 0.0625);
  EXPECT_EQ(parsed->norm, NormKind::kRmsOnePlus);
  EXPECT_EQ(parsed->activation, ActivationKind::kGeluTanh);
  EXPECT_EQ(parsed->layer_options[4].window, 4096);
  EXPECT_EQ(parsed->layer_options[5].window, 0);
  EXPECT_EQ(parsed->ropes[0].theta, 1e6);
  EXPECT_EQ(parsed->ropes[1].theta, 1e4);
  const char* old_style = R"(, "sliding_window": 8, "sliding_window_pattern": 2,
      "rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 8},
      "rope_local_base_freq": 2e4)";
  const char* new_style = R"(, "sliding_window": 8, "layer_types": ["sliding_attention",
      "full_attention", "sliding_attention", "full_attention"], "rope_parameters": {
      "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
      "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})";
  for (const char* more : {old_style, new_style}) {
    const ModelConfig config = Parse("gemma3_text", more);
    EXPECT_EQ(WindowsOf(config), (std::vector<int64_t>{8, 0, 8, 0}));
    EXPECT_EQ(RopesOf(config), (std::vector<int>{1, 0, 1, 0}));
    EXPECT_EQ(config.ropes[0].type, RopeType::kLinear);
    EXPECT_EQ(config.ropes[0].theta, 5e5);
    EXPECT_EQ(config.ropes[1].type, RopeType::kDefault);
    EXPECT_EQ(config.ropes[1].theta, 2e4);
    EXPECT_EQ(config.max_positions, 64) << "the file's number has the scaling in it";
  }
}

TEST(ModelConfigTest, TheDecoderOfAMultimodalModelIsRead) {
  const auto config = ParseModelConfig(R"({"model_type": "gemma3", "tie_word_embeddings": true,
      "text_config": {"hidden_size": 64, "num_hidden_layers": 2}, "vision_config": {}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, "gemma3_text");
  EXPECT_EQ(config->hidden, 64);
  EXPECT_EQ(config->prefix, "language_model.");
  EXPECT_EQ(BlockName(*config, 1), "language_model.model.layers.1");
  EXPECT_EQ(RuntimeModule(config->prefix, "language_model.model.layers.1.mlp.up_proj"),
            "model.language_model.layers.1.mlp.up_proj");
  EXPECT_EQ(RuntimeModule(config->prefix, "language_model.lm_head"), "lm_head");
  for (const char* name : {"language_model.model.norm", "language_model.lm_head"}) {
    EXPECT_EQ(CheckpointModule(config->prefix, RuntimeModule(config->prefix, name)), name);
    EXPECT_EQ(CheckpointModule(config->prefix, name), name) << "as older adapters have it";
  }
  EXPECT_EQ(CheckpointModule("", "model.norm"), "model.norm");
}

TEST(ModelConfigTest, OlmosNormsStandBehindTheSubLayers) {
  const ModelConfig olmo2 = Parse("olmo2");
  EXPECT_EQ(olmo2.qk_norm, QkNorm::kWhole);
  EXPECT_EQ(olmo2.norm, NormKind::kRmsFp32);
  EXPECT_EQ(olmo2.norm_epsilon, 1e-5);
  std::vector<std::string> names;
  for (const TensorInfo& tensor : BlockTensors(olmo2, 0).tensors) {
    if (tensor.role == TensorRole::kNorm) names.push_back(tensor.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"model.layers.0.self_attn.q_norm.weight",
                                             "model.layers.0.self_attn.k_norm.weight",
                                             "model.layers.0.post_attention_layernorm.weight",
                                             "model.layers.0.post_feedforward_layernorm.weight"}));
  // One rope_theta for the whole model counts for the full layers alone in transformers.
  const ModelConfig olmo3 = Parse("olmo3", R"(, "rope_theta": 1e4)");
  EXPECT_EQ(WindowsOf(olmo3), (std::vector<int64_t>{4096, 4096, 4096, 0}));
  EXPECT_EQ(olmo3.ropes[0].theta, 1e4);
  EXPECT_EQ(olmo3.ropes[1].theta, 5e5);
}

constexpr std::string_view kDenseGemma4 = R"(, "hidden_size_per_layer_input": 0,
    "head_dim": 8, "global_head_dim": 16, "num_key_value_heads": 2,
    "num_global_key_value_heads": 1, "layer_types": ["sliding_attention", "full_attention",
    "sliding_attention", "sliding_attention"])";

std::vector<std::string> LinearsOfLayer(const ModelConfig& config, int64_t layer) {
  std::vector<std::string> linears;
  for (const TensorInfo& tensor : BlockTensors(config, layer).tensors) {
    if (tensor.role == TensorRole::kLinear) linears.push_back(tensor.module());
  }
  return linears;
}

TEST(ModelConfigTest, FullLayersOfGemma4HaveHeadsOfTheirOwn) {
  const ModelConfig plain = Parse("gemma4_text", kDenseGemma4);
  EXPECT_EQ(plain.attention_scale, 1.0);
  EXPECT_EQ(plain.norm, NormKind::kRmsFp32);
  EXPECT_EQ(WindowsOf(plain), (std::vector<int64_t>{512, 0, 512, 0}));  // the last is full, always
  EXPECT_EQ(RopesOf(plain), (std::vector<int>{1, 0, 1, 0}));
  EXPECT_EQ(plain.ropes[0].type, RopeType::kProportional);
  EXPECT_EQ(plain.ropes[0].rotated, 0.25);
  EXPECT_EQ(plain.ropes[0].theta, 1e6);
  EXPECT_EQ(plain.ropes[1].theta, 1e4);
  EXPECT_EQ(plain.Layer(0), (LayerShape{2, 8, 128}));
  EXPECT_EQ(plain.Layer(1), (LayerShape{2, 16, 128}));  // its own key heads where keys are values
  EXPECT_EQ(plain.LargestHead(), 16);
  EXPECT_EQ(LinearsOfLayer(plain, 1).size(), 7u);
  spec::JobSpec job;
  job.lora.modules_to_save = {"1"};  // the end of a block's name, whose scalar is never trained
  EXPECT_THAT(CheckJob(plain, job)->message, testing::HasSubstr("\"1\" matches no embedding"));
  const ModelConfig config =
      Parse("gemma4_text", std::string(kDenseGemma4) + R"(, "attention_k_eq_v": true)");
  EXPECT_EQ(config.Layer(0), (LayerShape{2, 8, 128}));
  EXPECT_EQ(config.Layer(1), (LayerShape{1, 16, 128, true}));
  const std::vector<std::string> linears = LinearsOfLayer(config, 1);
  ASSERT_EQ(linears.size(), 6u);
  EXPECT_EQ(linears[1], "model.layers.1.self_attn.k_proj");
  EXPECT_EQ(linears[2], "model.layers.1.self_attn.o_proj");
}

TEST(ModelConfigTest, SizesOfGemma4AreReadAsTransformersWritesThem) {
  const ModelConfig config = Parse("gemma4_text", std::string(kDenseGemma4) + R"(,
      "attention_k_eq_v": true, "per_layer_config": {
      "1": {"head_dim": 32, "num_key_value_heads": 4}, "3": {"head_dim": 32}})");
  EXPECT_EQ(config.Layer(0), (LayerShape{2, 8, 128}));
  EXPECT_EQ(config.Layer(1), (LayerShape{4, 32, 128, true}));
  EXPECT_EQ(config.Layer(3), (LayerShape{2, 32, 128, true}));
}

TEST(ModelConfigTest, TheLastLayersOfAnEModelAttendToKeysOfOthers) {
  const ModelConfig config = Parse("gemma4_text", R"(, "num_kv_shared_layers": 2,
      "use_double_wide_mlp": true, "hidden_size_per_layer_input": 16,
      "vocab_size_per_layer_input": 120, "layer_types": ["sliding_attention", "full_attention",
      "sliding_attention", "full_attention"])");
  EXPECT_EQ(config.Layer(1).keys_of, -1);
  EXPECT_EQ(config.Layer(2).keys_of, 0);
  EXPECT_EQ(config.Layer(3).keys_of, 1);
  EXPECT_TRUE(config.Lends(0) && config.Lends(1));
  EXPECT_FALSE(config.Lends(2) || config.Lends(3));
  EXPECT_EQ(config.Layer(1).intermediate, 128);
  EXPECT_EQ(config.Layer(2).intermediate, 256);
  const std::string layer = "model.layers.2.";
  EXPECT_EQ(LinearsOfLayer(config, 2),
            (std::vector<std::string>{layer + "self_attn.q_proj", layer + "self_attn.o_proj",
                                      layer + "mlp.gate_proj", layer + "mlp.up_proj",
                                      layer + "mlp.down_proj", layer + "per_layer_input_gate",
                                      layer + "per_layer_projection"}));
  EXPECT_EQ(BlockTensors(config, 2).unused,
            (std::vector<std::string>{layer + "self_attn.k_proj", layer + "self_attn.v_proj",
                                      layer + "self_attn.k_norm"}));
  const std::vector<TensorInfo> embedding = EmbeddingTensors(config).tensors;
  ASSERT_EQ(embedding.size(), 4u);
  EXPECT_EQ(embedding[1].name, "model.embed_tokens_per_layer.weight");
  EXPECT_EQ(embedding[1].shape, (std::vector<int64_t>{120, 64}));
  EXPECT_EQ(embedding[2].shape, (std::vector<int64_t>{64, 64}));
}

// In files as at run time, names of the decoder begin with model.language_model.
TEST(ModelConfigTest, MultimodalGemma4HasTheNamesOfRunTimeInItsFiles) {
  const auto config = ParseModelConfig(R"({"model_type": "gemma4", "text_config":
      {"hidden_size_per_layer_input": 0}})");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string layer = "model.language_model.layers.3";
  EXPECT_EQ(BlockName(*config, 3), layer);
  EXPECT_EQ(EmbeddingTensors(*config).tensors[0].name, "model.language_model.embed_tokens.weight");
  EXPECT_EQ(HeadTensors(*config).tensors[0].name, "model.language_model.norm.weight");
  EXPECT_EQ(PrefixedName(config->prefix, "lm_head"), "lm_head");
  EXPECT_EQ(RuntimeModule(config->prefix, layer), layer);
  EXPECT_EQ(CheckpointModule(config->prefix, layer), layer);
}

TEST(ModelConfigTest, QueriesOfMinistral3AreScaledByTheirPosition) {
  const auto plain = ParseModelConfig(R"({"model_type": "ministral3"})");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->ropes[0].type, RopeType::kYarn);
  EXPECT_EQ(plain->ropes[0].query_scaling, 0.1);
  EXPECT_EQ(plain->ropes[0].original_max_positions, 16'384);
  EXPECT_EQ(plain->max_positions, 262'144);
  EXPECT_EQ(plain->layer_options[0].window, 0);
}

// What transformers 5.17 counts for these configurations.
TEST(ModelConfigTest, ParametersAreThoseOfTransformers) {
  for (const auto& [config, parameters] : std::vector<std::pair<std::string, int64_t>>{
           {R"({"model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048,
                "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1,
                "vocab_size": 262144})",
            268'098'176},
           {R"({"model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
                "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
                "head_dim": 128})",
            27'009'346'304},
           // Beside these, a constant in each layer.
           {R"({"model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504,
                "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
                "num_global_key_value_heads": 4, "attention_k_eq_v": true,
                "hidden_size_per_layer_input": 0})",
            30'697'345'280 + 60},
           {R"({"model_type": "gemma4_text", "hidden_size": 2560, "intermediate_size": 10240,
                "num_hidden_layers": 42, "num_attention_heads": 8, "num_key_value_heads": 2,
                "num_kv_shared_layers": 18})",
            7'463'013'376 + 42},
           {R"({"model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144,
                "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 1,
                "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "layer_types":
                ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                 "full_attention"]})",
            989'505'536 + 5},
           {R"({"model_type": "olmo2"})", 6'888'624'128},
           {R"({"model_type": "ministral3"})", 8'489'553'920}}) {
    const auto model = ParseModelConfig(config);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(BaseParameters(*model), parameters) << config;
  }
}

TEST(ModelConfigTest, ErrorsNameTheKey) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"not json", "is not a JSON object"},
           {"{}", "config.json: \"model_type\" is missing"},
           {Config("bert"), "\"bert\" is not supported (the nearest is llama: it is an encoder, "},
           {Config("gemma2"),
            "\"gemma2\" is not supported (the nearest is gemma3_text: attention scores and logits "
            "are capped by tanh); llama, "},
           {Config("qwen33"), "\"qwen33\" is not supported (the nearest name is qwen3); llama, "},
           {Config("grok_9"),
            "\"grok_9\" is not supported (the nearest by its keys is llama, but what its layers "
            "compute is not known); llama, "},
           {Config("grok_9", R"(, "num_local_experts": 8)"),
            "(the nearest by its keys is llama: its feed-forward layers are mixtures of experts)"},
           {R"({"model_type": "grok_9", "n_embd": 64})", "(the nearest by its keys is gpt2, but"},
           {R"({"model_type": "grok_9"})", "\"grok_9\" is not supported; llama, "},
           {Config("gemma3"), "config.json: \"text_config\" is missing"},
           {R"({"model_type": "gemma3", "text_config": {"model_type": "gemma2"}})",
            "config.json: text_config: \"model_type\" \"gemma2\" is not supported"},
           {R"({"model_type": "gemma3", "text_config": {"hidden_size": 0}})",
            "config.json: text_config: \"hidden_size\" must be a whole number above 0"},
           {Config("gemma3_text", R"(, "final_logit_softcapping": 30.0)"),
            "\"final_logit_softcapping\" is not supported"},
           {Config("gemma3_text", R"(, "use_bidirectional_attention": true)"), "EmbeddingGemma"},
           {Config("gemma3_text", R"(, "hidden_activation": "relu")"),
            "\"hidden_activation\" \"relu\" is not supported; silu and gelu_pytorch_tanh are"},
           {Config("gemma4_text", R"(, "vocab_size_per_layer_input": 99)"),
            "\"vocab_size_per_layer_input\" 99 is less than the vocabulary of 100"},
           {Config("gemma4_text", std::string(kDenseGemma4) + R"(, "num_kv_shared_layers": 4)"),
            "\"num_kv_shared_layers\" must be below the 4 layers"},
           {Config("gemma4_text", std::string(kDenseGemma4) + R"(, "num_kv_shared_layers": 3)"),
            "\"num_kv_shared_layers\" leaves layer 1 no layer of its type to share with"},
           {Config("gemma4_text", std::string(kDenseGemma4) + R"(, "per_layer_config":
                {"4": {"head_dim": 8}})"),
            "config.json: per_layer_config: \"4\" is no layer of 4"},
           {Config("gemma4_text", std::string(kDenseGemma4) + R"(, "per_layer_config":
                {"1": {"intermediate_size": 8}})"),
            "\"intermediate_size\" is not read of single layers"},
           {Config("gemma4_text", std::string(kDenseGemma4) + R"(, "attention_k_eq_v": true,
                "num_global_key_value_heads": 3)"),
            "\"num_global_key_value_heads\" gives layer 1"},
           {R"({"model_type": "llama"})", "\"vocab_size\" is missing"},
           {Config("smollm3", R"(, "no_rope_layers": [1, 0])"),
            "\"no_rope_layers\" names 2 layers of 4"},
           {Config("granite", R"(, "residual_multiplier": 0)"),
            "\"residual_multiplier\" must be a number above 0"},
           {Config("llama", R"(, "num_key_value_heads": 3)"), "3 does not divide 4"},
           {Config("llama", R"(, "num_key_value_heads": 0)"), "whole number above 0"},
           {Config("llama", R"(, "num_key_value_heads": 18446744073709551615)"), "above 0"},
           {Config("llama", R"(, "tie_word_embeddings": 1)"), "must be true or false"},
           {Config("llama", R"(, "rms_norm_eps": "x")"), "\"rms_norm_eps\" has the wrong type"},
           {Config("llama", R"(, "head_dim": 15)"), "\"head_dim\" must be even"},
           {Config("llama", R"(, "num_attention_heads": 3)"),
            "\"num_attention_heads\" 3 does not divide hidden_size 64, and there is no head_dim"},
           {Config("llama", R"(, "num_hidden_layers": -2)"), "above 0, is -2"},
           {Config("llama", R"(, "hidden_size": 4294967296, "vocab_size": 4294967296)"),
            "makes 3e+20 weights, more than any model has"},
           {Config("llama", R"(, "hidden_size": 4294967297)"), "must be a whole number above 0"},
           {Config("llama", R"(, "hidden_act": "gelu")"), "\"gelu\" is not supported; silu and"},
           {Config("llama", R"(, "rope_scaling": {"rope_type": "dynamic", "factor": 2})"),
            "config.json: rope_scaling: \"rope_type\" \"dynamic\" is not supported"},
           {Config("llama", R"(, "rope_scaling": {"rope_type": "linear"})"),
            "\"factor\" is missing"},
           {Config("llama", R"(, "rope_scaling": 2)"), "\"rope_scaling\" must be an object"},
           {Config("qwen3", R"(, "use_sliding_window": true, "layer_types": ["linear_attention"])"),
            "names 1 layers of 4"}}) {
    const auto config = ParseModelConfig(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(std::string(Message(config.status())), HasSubstr(says));
  }
}

}  // namespace
}  // namespace sft::plan
