#include "worker/engine/model/config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

std::string Config(const std::string& type, const std::string& extra = "") {
  return R"({"model_type": ")" + type + R"(", "vocab_size": 96, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64)" +
         extra + "}";
}

DecoderConfig Parse(const std::string& text) { return DecoderConfig::Parse(text, "config.json"); }

// The message of the UserError that parsing throws.
std::string ParseRefusal(const std::string& text) {
  try {
    Parse(text);
  } catch (const UserError& error) {
    return std::string(error.what()) + " " + error.advice();
  }
  return "accepted";
}

TEST(DecoderConfigTest, EveryFamilyHasItsOwnDefaults) {
  EXPECT_EQ(Parse(Config("llama")).head_size, 8);
  EXPECT_FALSE(Parse(Config("llama")).qkv_bias);
  EXPECT_TRUE(Parse(Config("qwen2")).qkv_bias);
  EXPECT_FALSE(Parse(Config("qwen2")).output_bias);
  EXPECT_EQ(Parse(Config("qwen3")).head_size, 128);
  EXPECT_TRUE(Parse(Config("qwen3")).head_norm);
  EXPECT_EQ(Parse(Config("mistral")).windows, std::vector<int64_t>(4, 4096));
}

TEST(DecoderConfigTest, AttentionBiasCoversAllFourProjectionsWhereItIsAnOption) {
  const DecoderConfig config =
      Parse(Config("llama", R"(, "attention_bias": true, "mlp_bias": true)"));
  EXPECT_TRUE(config.qkv_bias && config.output_bias && config.mlp_bias);
  EXPECT_FALSE(Parse(Config("mistral", R"(, "attention_bias": true)")).qkv_bias);
}

TEST(DecoderConfigTest, SlidingWindowsFollowTheFamilysRules) {
  const std::vector<int64_t> none(4, 0);
  EXPECT_EQ(Parse(Config("mistral", R"(, "sliding_window": null)")).windows, none);
  EXPECT_EQ(Parse(Config("qwen2", R"(, "sliding_window": 8)")).windows, none);
  EXPECT_EQ(Parse(Config("qwen2", R"(, "sliding_window": 8, "use_sliding_window": true,
                                        "max_window_layers": 3)"))
                .windows,
            (std::vector<int64_t>{0, 0, 0, 8}));
  EXPECT_EQ(Parse(Config("qwen3", R"(, "sliding_window": 8, "use_sliding_window": true,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                      "full_attention"])"))
                .windows,
            (std::vector<int64_t>{8, 0, 8, 0}));
}

TEST(DecoderConfigTest, RotaryScalingIsReadFromBothSpellings) {
  const char* old_style = R"(, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2})";
  const char* new_style =
      R"(, "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e5})";
  for (const char* extra : {old_style, new_style}) {
    const RopeOptions rope = Parse(Config("llama", extra)).rope;
    EXPECT_EQ(rope.type, RopeType::kLinear);
    EXPECT_EQ(rope.factor, 2.0);
    EXPECT_EQ(rope.theta, 5e5);
  }
}

TEST(DecoderConfigTest, RefusesWhatItCannotRunAndSaysWhatItCan) {
  EXPECT_NE(ParseRefusal(Config("gpt2")).find("llama, mistral, qwen2, qwen3"), std::string::npos);
  EXPECT_NE(
      ParseRefusal(Config("llama", R"(, "rope_scaling": {"rope_type": "dynamic", "factor": 2})"))
          .find("dynamic"),
      std::string::npos);
  EXPECT_NE(ParseRefusal(Config("llama", R"(, "hidden_act": "gelu")")).find("hidden_act"),
            std::string::npos);
  EXPECT_NE(
      ParseRefusal(Config("llama", R"(, "num_key_value_heads": 3)")).find("num_key_value_heads"),
      std::string::npos);
  EXPECT_NE(
      ParseRefusal(Config("llama", R"(, "quantization_config": {"bits": 4})")).find("quantised"),
      std::string::npos);
  EXPECT_NE(ParseRefusal(R"({"model_type": "llama"})").find("vocab_size"), std::string::npos);
  EXPECT_NE(ParseRefusal("{").find("not a JSON object"), std::string::npos);
  EXPECT_THROW(DecoderConfig::Read("/nonexistent"), UserError);
}

}  // namespace
}  // namespace sft::engine
