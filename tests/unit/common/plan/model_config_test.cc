#include "common/plan/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

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
  EXPECT_FALSE(llama.qk_norm);
  const ModelConfig qwen2 = Parse("qwen2");
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.output_bias);
  const ModelConfig qwen3 = Parse("qwen3");
  EXPECT_TRUE(qwen3.qk_norm);
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

TEST(ModelConfigTest, ErrorsNameTheKey) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"not json", "is not a JSON object"},
           {"{}", "config.json: \"model_type\" is missing"},
           {Config("gpt2"),
            "\"gpt2\" is not supported; llama, mistral, qwen2, qwen3, granite, smollm3 are"},
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
           {Config("llama", R"(, "hidden_act": "gelu")"), "\"gelu\" is not supported; silu is"},
           {Config("llama", R"(, "quantization_config": {"bits": 4})"), "quantised already"},
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
