#include "common/plan/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kSizes =
    R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
       "intermediate_size": 128, "vocab_size": 100)";

std::string Config(std::string_view type, std::string_view more = "") {
  return "{\"model_type\": \"" + std::string(type) + "\", " + std::string(kSizes) +
         std::string(more) + "}";
}

TEST(ModelShapeTest, AbsentKeysFollowTheFamily) {
  const auto llama = ParseModelShape(Config("llama"));
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->kv_heads, 4);
  EXPECT_EQ(llama->head_dim, 16);
  EXPECT_FALSE(llama->tied_head || llama->qkv_bias || llama->output_bias || llama->mlp_bias);
  EXPECT_FALSE(llama->qk_norm);
  const auto qwen2 = ParseModelShape(Config("qwen2"));
  EXPECT_TRUE(qwen2->qkv_bias);
  EXPECT_FALSE(qwen2->output_bias);
  const auto qwen3 = ParseModelShape(Config("qwen3"));
  EXPECT_TRUE(qwen3->qk_norm);
  EXPECT_EQ(qwen3->head_dim, 128);
}

TEST(ModelShapeTest, GivenKeysWin) {
  const auto shape = ParseModelShape(
      Config("llama", R"(, "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": true,
                          "attention_bias": true, "mlp_bias": true)"));
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->kv_heads, 2);
  EXPECT_EQ(shape->head_dim, 32);
  EXPECT_TRUE(shape->tied_head && shape->qkv_bias && shape->output_bias && shape->mlp_bias);
}

TEST(ModelShapeTest, ANullHeadDimIsAbsent) {
  EXPECT_EQ(ParseModelShape(Config("mistral", R"(, "head_dim": null)"))->head_dim, 16);
}

TEST(ModelShapeTest, WhatIsWrongIsNamed) {
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"not json", "is not a JSON object"},
           {"{}", "has no model_type"},
           {Config("gpt2"), "model_type \"gpt2\" is not supported yet"},
           {R"({"model_type": "llama"})", "has no hidden_size"},
           {Config("llama", R"(, "num_key_value_heads": 3)"), "evenly"},
           {Config("llama", R"(, "num_key_value_heads": 0)"), "num_key_value_heads must be"},
           {Config("llama", R"(, "tie_word_embeddings": 1)"), "tie_word_embeddings must be"}}) {
    const auto shape = ParseModelShape(text);
    ASSERT_FALSE(shape.ok()) << text;
    EXPECT_THAT(std::string(Message(shape.status())), HasSubstr(says));
  }
}

}  // namespace
}  // namespace sft::plan
