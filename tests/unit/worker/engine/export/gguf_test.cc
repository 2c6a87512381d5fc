#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Half.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json.h"
#include "common/io/file.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"
#include "worker/engine/export/gguf_checks.h"
#include "worker/engine/export/gguf_family.h"
#include "worker/engine/export/gguf_file.h"
#include "worker/engine/export/gguf_model.h"
#include "worker/engine/export/gguf_sentencepiece.h"
#include "worker/engine/export/gguf_tokenizer.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"

namespace sft::engine {
namespace {

using ::testing::HasSubstr;

template <typename T>
T At(const std::string& bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

TEST(GgufTest, AFileHasKeysTensorsReversedShapesAndAlignedData) {
  const TempDir dir;
  GgufKeys keys;
  keys.Set("general.name", "x");
  keys.SetInt("n", 7);
  keys.SetBools("slides", {true, false});
  const std::filesystem::path path = dir / "a.gguf";
  {
    GgufWriter writer(path, keys, {{"m", {2, 3}, GgmlType::kBf16}, {"v", {5}, GgmlType::kF32}});
    writer.Write("v", at::arange(5));
    writer.Write("m", at::ones({2, 3}));
    writer.Commit();
  }
  const std::string bytes = io::ReadFile(path.string()).value();
  EXPECT_EQ(bytes.substr(0, 4), "GGUF");
  EXPECT_EQ(At<uint32_t>(bytes, 4), 3u);
  EXPECT_EQ(At<uint64_t>(bytes, 8), 2u) << "tensors";
  EXPECT_EQ(At<uint64_t>(bytes, 16), 3u) << "keys";
  const size_t flags = bytes.find("slides") + 6;
  EXPECT_EQ(At<uint32_t>(bytes, flags), 9u) << "an array";
  EXPECT_EQ(At<uint32_t>(bytes, flags + 4), 7u) << "of flags, a byte each";
  EXPECT_EQ(At<uint64_t>(bytes, flags + 8), 2u);
  EXPECT_EQ(bytes.substr(flags + 16, 2), std::string("\1\0", 2));
  const size_t matrix = bytes.find('m', bytes.find("general.name") + 30);
  ASSERT_NE(matrix, std::string::npos);
  EXPECT_EQ(At<uint32_t>(bytes, matrix + 1), 2u);
  EXPECT_EQ(At<uint64_t>(bytes, matrix + 5), 3u) << "columns come first";
  EXPECT_EQ(At<uint64_t>(bytes, matrix + 13), 2u);
  EXPECT_EQ(bytes.size() % 32, 0u);
  const size_t data = bytes.size() - 64;
  EXPECT_EQ(At<uint16_t>(bytes, data), 0x3f80) << "1 in bf16";
  EXPECT_EQ(At<float>(bytes, data + 32 + 16), 4.0f);
}

TEST(GgufTest, WithoutCommitThereIsNoFile) {
  const TempDir dir;
  const std::filesystem::path path = dir / "a.gguf";
  {
    GgufWriter writer(path, {}, {{"v", {5}, GgmlType::kF32}});
    EXPECT_THROW(writer.Commit(), InternalError) << "a tensor is missing";
    EXPECT_THROW(writer.Write("v", at::ones({6})), InternalError);
    EXPECT_THROW(writer.Write("w", at::ones({5})), InternalError);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(GgufTest, Q8HasAScaleAndRoundedValuesForEach32) {
  at::Tensor values = at::arange(64).to(at::kFloat) - 32;
  values[32] = 254;  // the second block's largest: its scale is 2
  const std::string bytes = ToQ8(values);
  ASSERT_EQ(bytes.size(), 68u);
  c10::Half scale;
  std::memcpy(&scale.x, bytes.data() + 34, 2);
  EXPECT_EQ(static_cast<float>(scale), 2.0f);
  EXPECT_EQ(static_cast<int8_t>(bytes[36]), 127);
  EXPECT_EQ(static_cast<int8_t>(bytes[36 + 3]), 2) << "3 / 2 is rounded away from 0";
  EXPECT_EQ(static_cast<int8_t>(bytes[2]), -127);
  const std::string zeros = ToQ8(at::ones({32}) * 0);
  EXPECT_EQ(zeros, std::string(34, '\0'));
  EXPECT_TRUE(FitsQ8({3, 64}));
  EXPECT_FALSE(FitsQ8({3, 65}));
  EXPECT_FALSE(FitsQ8({64}));
}

TEST(GgufTest, FamiliesWithoutANameAreRefusedByName) {
  ModelConfig config;
  config.family = "glm4_moe";
  try {
    CheckGguf("/none", config);
    FAIL() << "taken";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("family glm4_moe is not supported yet"));
    EXPECT_THAT(error.advice(), HasSubstr("convert_hf_to_gguf.py"));
  }
}

std::vector<GgufPart> PartsOf(const ModelConfig& config, const std::string& name) {
  for (const UnitInfo& unit : MakeLayout(config).units) {
    const int param = unit.Find(name);
    if (param >= 0) return GgufParts(config, unit.params[param]);
  }
  return {};
}

TEST(GgufTest, StacksOfExpertsHaveTheirGatesAndUpsApart) {
  const auto parse = [](const char* keys) {
    return ParseConfig(std::string(R"({"hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "vocab_size": 96, )") +
                           keys + "}",
                       "config.json");
  };
  const ModelConfig qwen = parse(R"("model_type": "qwen3_moe", "num_experts": 4,
      "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": true)");
  CheckGgufFamily(qwen);
  const auto parts = PartsOf;
  const std::string experts = "model.layers.1.mlp.experts.";
  const auto gate_up = parts(qwen, experts + "gate_up_proj.weight");
  ASSERT_EQ(gate_up.size(), 2U);
  EXPECT_EQ(gate_up[0].name, "blk.1.ffn_gate_exps.weight");
  EXPECT_EQ(gate_up[1].name, "blk.1.ffn_up_exps.weight");
  EXPECT_EQ(gate_up[1].shape, (std::vector<int64_t>{4, 16, 32}));
  EXPECT_TRUE(gate_up[0].is_half && !gate_up[0].is_up && gate_up[1].is_up);
  const auto down = parts(qwen, experts + "down_proj.weight");
  ASSERT_EQ(down.size(), 1U);
  EXPECT_EQ(down[0].name, "blk.1.ffn_down_exps.weight");
  EXPECT_EQ(down[0].shape, (std::vector<int64_t>{4, 32, 16}));
  EXPECT_EQ(parts(qwen, "model.layers.0.mlp.gate.weight").at(0).name, "blk.0.ffn_gate_inp.weight");
  const ModelConfig gpt_oss = parse(R"("model_type": "gpt_oss", "num_local_experts": 4)");
  CheckGgufFamily(gpt_oss);
  EXPECT_EQ(parts(gpt_oss, experts + "gate_up_proj.bias").at(1).name, "blk.1.ffn_up_exps.bias");
  EXPECT_EQ(parts(gpt_oss, experts + "gate_up_proj.bias").at(1).shape,
            (std::vector<int64_t>{4, 48}));
  EXPECT_EQ(parts(gpt_oss, "model.layers.0.self_attn.sinks").at(0).name, "blk.0.attn_sinks.weight");
  EXPECT_EQ(GgufName(gpt_oss, "model.layers.0.post_attention_layernorm.weight"),
            "blk.0.post_attention_norm.weight");
  for (const auto& [config, says] : std::vector<std::pair<ModelConfig, std::string>>{
           {parse(R"("model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                     "moe_intermediate_size": 16)"),
            "do not add up to 1 (norm_topk_prob)"},
           {parse(R"("model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                     "moe_intermediate_size": 16, "norm_topk_prob": true, "mlp_only_layers": [1])"),
            "layer 1 of this model has none"},
           {parse(R"("model_type": "gpt_oss", "num_local_experts": 4, "attention_bias": false)"),
            "wants biases in gpt_oss's attention"},
           {parse(R"("model_type": "gpt_oss", "num_local_experts": 4, "layer_types":
                     ["full_attention", "sliding_attention"])"),
            "has a window in all layers but each 2th"},
           {parse(R"("model_type": "gpt_oss", "num_local_experts": 4,
                     "tie_word_embeddings": true)"),
            "wants a head of its own in gpt_oss"}}) {
    try {
      CheckGgufFamily(config);
      FAIL() << says;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(says));
    }
  }
}

TEST(GgufTest, ATokenizerOfAnotherShapeIsRefusedAndNotAnErrorOfTheEngine) {
  const TempDir dir;
  for (const char* text :
       {"[]", "7", R"({"model":7})", R"({"model":{"type":7}})", R"({"model":{"type":"BPE"}})",
        R"({"model":{"type":"BPE"},"pre_tokenizer":{"type":"ByteLevel","use_regex":"yes"}})",
        R"({"model":{"type":"BPE"},"pre_tokenizer":{"type":"Sequence","pretokenizers":3}})"}) {
    ASSERT_TRUE(io::WriteFileAtomic((dir / "tokenizer.json").string(), text).ok());
    GgufKeys keys;
    EXPECT_THROW(AddTokenizer(dir / "", 8, "llama", keys), UserError) << text;
  }
}

// A tokenizer.json whose merges are those of a SentencePiece model: "▁ab" of "▁a" and of "ab".
nlohmann::json Pieces() {
  return ParseJson(
      R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
      "pre_tokenizer": null,
      "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
      "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>",
                "vocab": {"<unk>": 0, "<0x0A>": 1, "▁": 2, "a": 3, "b": 4, "ab": 5, "▁a": 6,
                          "▁ab": 7},
                "merges": [["a", "b"], ["▁", "a"], ["▁", "ab"], ["▁a", "b"]]}})");
}

std::string RefusedPieces(const nlohmann::json& tokenizer) {
  try {
    ReadSentencePieces(tokenizer, 10);
  } catch (const UserError& error) {
    return error.what();
  }
  return "taken";
}

TEST(SentencePiecesTest, TokensAreScoredInTheOrderOfTheirMerges) {
  nlohmann::json tokenizer = Pieces();
  EXPECT_TRUE(IsSentencePiece(tokenizer));
  SentencePieces pieces = ReadSentencePieces(tokenizer, 10);
  EXPECT_FALSE(pieces.space_before);
  ASSERT_EQ(pieces.scores.size(), 10u);
  EXPECT_EQ(pieces.scores[5], 0.0F);
  EXPECT_EQ(pieces.scores[6], -1.0F);
  EXPECT_EQ(pieces.scores[7], -2.0F);
  EXPECT_LT(pieces.scores[3], -1e6F) << "nothing becomes a letter";
  tokenizer["normalizer"] = ParseJson(R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})");
  EXPECT_TRUE(ReadSentencePieces(tokenizer, 10).space_before);
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = ParseJson(
      R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": false})");
  EXPECT_FALSE(ReadSentencePieces(tokenizer, 10).space_before);
  for (const char* scheme : {"first", "always"}) {
    tokenizer["pre_tokenizer"]["prepend_scheme"] = scheme;
    EXPECT_THAT(RefusedPieces(tokenizer), HasSubstr("before some texts alone"));
  }
  tokenizer["model"]["byte_fallback"] = false;
  EXPECT_FALSE(IsSentencePiece(tokenizer));
}

TEST(SentencePiecesTest, WhatLlamaCppWouldJoinOtherwiseIsRefused) {
  const auto with = [](const char* path, const char* value) {
    nlohmann::json tokenizer = Pieces();
    tokenizer[nlohmann::json::json_pointer(path)] = ParseJson(value);
    return RefusedPieces(tokenizer);
  };
  EXPECT_EQ(with("/model/merges", R"(["a b", "▁ a", "▁ ab", "▁a b"])"), "taken");
  EXPECT_THAT(with("/model/merges", R"([["a", "b"], ["▁", "a"], ["▁a", "b"]])"),
              HasSubstr("\"▁\" and \"ab\" make a token and are no merge"));
  EXPECT_THAT(with("/model/merges", R"([["a", "b"], ["▁", "ab"], ["▁", "a"], ["▁a", "b"]])"),
              HasSubstr("\"▁ab\" are not in a row"));
  EXPECT_THAT(with("/model/merges", R"([["a"]])"), HasSubstr("a merge is no pair"));
  EXPECT_THAT(with("/model/ignore_merges", "true"), HasSubstr("whole words need no merges"));
  EXPECT_THAT(with("/normalizer", "null"), HasSubstr("spaces stay spaces"));
  EXPECT_THAT(with("/normalizer", R"({"type": "NFKC"})"), HasSubstr("(NFKC)"));
  EXPECT_THAT(with("/pre_tokenizer", R"({"type": "Whitespace"})"), HasSubstr("(Whitespace)"));
  EXPECT_THAT(with("/added_tokens/0/rstrip", "true"), HasSubstr("takes the spaces beside it"));
}

ModelConfig Gemma3() {
  ModelConfig config = ParseConfig(R"({"model_type": "gemma3_text", "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32, "sliding_window": 8,
      "query_pre_attn_scalar": 16, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0})",
                                   "gemma");
  return config;
}

TEST(GgufFamilyTest, NamesAreThoseOfLlamaCpp) {
  const ModelConfig gemma = Gemma3();
  EXPECT_EQ(GgufName(gemma, "model.layers.3.post_attention_layernorm.weight"),
            "blk.3.post_attention_norm.weight");
  EXPECT_EQ(GgufName(gemma, "model.layers.3.pre_feedforward_layernorm.weight"),
            "blk.3.ffn_norm.weight");
  EXPECT_EQ(GgufName(gemma, "model.layers.3.self_attn.q_proj.bias"), "");
  ModelConfig wrapped = gemma;
  wrapped.prefix = "language_model.";
  EXPECT_EQ(GgufName(wrapped, "language_model.model.layers.0.mlp.up_proj.weight"),
            "blk.0.ffn_up.weight");
  wrapped.prefix = "model.language_model.";
  EXPECT_EQ(GgufName(wrapped, "model.language_model.embed_tokens.weight"), "token_embd.weight");
  ModelConfig other;
  other.family = "llama";
  EXPECT_EQ(GgufName(other, "model.layers.12.post_attention_layernorm.weight"),
            "blk.12.ffn_norm.weight");
  other.family = "gpt2";
  EXPECT_EQ(GgufName(other, "transformer.h.1.attn.c_proj.bias"), "blk.1.attn_output.bias");
  EXPECT_EQ(GgufName(other, "transformer.wpe.weight"), "position_embd.weight");
}

TEST(GgufFamilyTest, WhatLlamaCppHasFixedIsRefusedWhereAModelDiffers) {
  const auto refused = [](const std::function<void(ModelConfig&)>& change) -> std::string {
    ModelConfig config = Gemma3();
    change(config);
    try {
      CheckGgufFamily(config);
    } catch (const UserError& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_EQ(refused([](ModelConfig&) {}), "taken");
  EXPECT_THAT(refused([](ModelConfig& c) { c.layer_options[5].window = 8; }),
              HasSubstr("layer 5 of this model has one"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.layer_options[1].window = 0; }),
              HasSubstr("layer 1 of this model has not one"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.attention_scale = 0.1; }),
              HasSubstr("query_pre_attn_scalar is not the 16"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.activation = plan::ActivationKind::kSilu; }),
              HasSubstr("its activation is not"));
  EXPECT_THAT(refused([](ModelConfig& c) {
                for (plan::LayerOptions& layer : c.layer_options) layer.rope = 0;
                c.ropes[0].theta = 5000;
              }),
              HasSubstr("another base than 10000"));
}

TEST(GgufFamilyTest, YarnAndWindowsOfOlmo3AreTakenAsLlamaCppHasThem) {
  const auto refused = [](const std::function<void(ModelConfig&)>& change) -> std::string {
    ModelConfig config = ParseConfig(R"({"architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
        "max_position_embeddings": 512, "sliding_window": 64, "pad_token_id": null,
        "tie_word_embeddings": false, "rope_parameters": {
          "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
          "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0,
                             "original_max_position_embeddings": 64}}})",
                                     "olmo");
    change(config);
    try {
      CheckGgufFamily(config);
    } catch (const UserError& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_EQ(refused([](ModelConfig&) {}), "taken");
  EXPECT_THAT(refused([](ModelConfig& c) { c.layer_options[3].window = 64; }),
              HasSubstr("but each 4th, and layer 3 of this model has one"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.layer_options[2].window = 32; }),
              HasSubstr("several sizes"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.ropes[c.layer_options[0].rope].theta = 10000; }),
              HasSubstr("has another base"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.ropes[c.layer_options[3].rope].beta_fast = 16; }),
              HasSubstr("other settings than factor"));
  EXPECT_THAT(refused([](ModelConfig& c) { c.tied_head = true; }), HasSubstr("a head of its own"));
}

std::string RefusedFamily(const ModelConfig& config) {
  try {
    CheckGgufFamily(config);
  } catch (const UserError& error) {
    return error.what();
  }
  return "taken";
}

ModelConfig Granite4(const std::string& positions) {
  return ParseConfig(R"({"model_type": "granitemoehybrid", "hidden_size": 64,
      "shared_intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 128, "num_local_experts": 0,
      "layer_types": ["attention", "attention"], "position_embedding_type": ")" +
                         positions + "\"}",
                     "granite");
}

TEST(GgufFamilyTest, TheOneLinearOfGranite4sGatesAndUpsBecomesTwo) {
  const ModelConfig config = Granite4("nope");
  EXPECT_EQ(RefusedFamily(config), "taken");
  EXPECT_EQ(RefusedFamily(Granite4("rope")), "taken");
  const auto parts = PartsOf(config, "model.layers.1.shared_mlp.input_linear.weight");
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].name, "blk.1.ffn_gate.weight");
  EXPECT_EQ(parts[1].name, "blk.1.ffn_up.weight");
  EXPECT_EQ(parts[1].shape, (std::vector<int64_t>{96, 64}));
  EXPECT_TRUE(parts[1].is_half && parts[1].is_up && parts[1].outputs == 0);
  const auto down = PartsOf(config, "model.layers.1.shared_mlp.output_linear.weight");
  ASSERT_EQ(down.size(), 1U);
  EXPECT_EQ(down[0].name, "blk.1.ffn_down.weight");
}

// With these keys instead of its own.
ModelConfig Gemma4(const std::string& keys) {
  nlohmann::json config = nlohmann::json::parse(R"({
      "model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "global_head_dim": 32, "vocab_size": 128, "sliding_window": 8,
      "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                      "full_attention", "sliding_attention", "full_attention"]})");
  config.update(nlohmann::json::parse("{" + keys + "}"));
  return ParseConfig(config.dump(), "gemma");
}

TEST(GgufFamilyTest, Gemma4sTensorsOfLayersAndOfTheirInputsHaveLlamaCppsNames) {
  const ModelConfig config = Gemma4(R"("num_kv_shared_layers": 2)");
  EXPECT_EQ(RefusedFamily(config), "taken");
  for (const auto& [name, theirs] : std::vector<std::pair<std::string, std::string>>{
           {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
           {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
           {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
           {"model.layers.2.layer_scalar", "blk.2.layer_output_scale.weight"},
           {"model.layers.2.per_layer_input_gate.weight", "blk.2.inp_gate.weight"},
           {"model.layers.2.per_layer_projection.weight", "blk.2.proj.weight"},
           {"model.layers.2.post_per_layer_input_norm.weight", "blk.2.post_norm.weight"},
           {"model.layers.2.post_feedforward_layernorm.weight", "blk.2.post_ffw_norm.weight"}}) {
    const auto parts = PartsOf(config, name);
    ASSERT_EQ(parts.size(), 1U) << name;
    EXPECT_EQ(parts[0].name, theirs);
  }
  EXPECT_TRUE(PartsOf(config, "model.layers.4.self_attn.k_proj.weight").empty())
      << "it uses the keys of another layer";
  EXPECT_EQ(MainShape(config).head_dim, 32);
  const ModelConfig mixture = Gemma4(R"("enable_moe_block": true, "num_experts": 4,
      "top_k_experts": 2, "moe_intermediate_size": 24, "hidden_size_per_layer_input": 0)");
  EXPECT_EQ(RefusedFamily(mixture), "taken");
  EXPECT_EQ(GgufName(mixture, "model.layers.1.router.proj.weight"), "blk.1.ffn_gate_inp.weight");
  EXPECT_EQ(GgufName(mixture, "model.layers.1.router.scale"), "blk.1.ffn_gate_inp.scale");
  EXPECT_EQ(GgufName(mixture, "model.layers.1.router.per_expert_scale"),
            "blk.1.ffn_down_exps.scale");
  EXPECT_EQ(GgufName(mixture, "model.layers.1.pre_feedforward_layernorm_2.weight"),
            "blk.1.pre_ffw_norm_2.weight");
}

TEST(GgufFamilyTest, WhatLlamaCppCannotDoOfGemma4IsRefused) {
  EXPECT_EQ(RefusedFamily(Gemma4("")), "taken");
  ModelConfig config = Gemma4("");
  config.layer_shapes[4].head_dim = 24;
  EXPECT_THAT(RefusedFamily(config), HasSubstr("heads of layer 4 have a size of their own"));
  config = Gemma4("");
  config.layer_options[2].window = 16;
  EXPECT_THAT(RefusedFamily(config), HasSubstr("windows are of several sizes"));
  config = Gemma4(R"("vocab_size_per_layer_input": 256)");
  EXPECT_THAT(RefusedFamily(config), HasSubstr("inputs of their own for 256 tokens"));
  config = Gemma4("");
  config.ropes[0].factor = 8;
  EXPECT_THAT(RefusedFamily(config), HasSubstr("the rope of layer 1 is scaled"));
  config = Gemma4(R"("num_kv_shared_layers": 3)");
  EXPECT_THAT(RefusedFamily(config),
              HasSubstr("layer 3 uses the keys of layer 1, and in llama.cpp those of layer 2"));
}

ModelConfig Ministral3(const std::string& mscale) {
  return ParseConfig(R"({"model_type": "ministral3", "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "vocab_size": 128, "max_position_embeddings": 1024, "rope_parameters": {
      "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
      "original_max_position_embeddings": 64, "mscale": )" +
                         mscale + R"(, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}})",
                     "ministral");
}

TEST(GgufFamilyTest, Ministral3sYarnIsTakenAsItWasReleased) {
  EXPECT_EQ(RefusedFamily(Ministral3("1.0")), "taken");
  EXPECT_THAT(RefusedFamily(Ministral3("0.7")), HasSubstr("are not the same number"));
  ModelConfig plain = Ministral3("1.0");
  plain.ropes[0].type = plan::RopeType::kDefault;
  EXPECT_THAT(RefusedFamily(plain), HasSubstr("not scaled as Ministral 3's"));
}

TEST(SentencePiecesTest, Gemma4sMergeInTheirOwnOrderButNotOverLineFeeds) {
  const auto with = [](const char* path, const char* value) -> std::string {
    nlohmann::json tokenizer = Pieces();
    if (*path != '\0') tokenizer[nlohmann::json::json_pointer(path)] = ParseJson(value);
    try {
      CheckGemma4Pieces(tokenizer);
    } catch (const UserError& error) {
      return error.what();
    }
    return "taken";
  };
  EXPECT_EQ(with("", ""), "taken");
  EXPECT_EQ(with("/model/merges", R"([["a", "b"], ["▁", "a"], ["▁a", "b"]])"), "taken");
  EXPECT_EQ(with("/model/merges", R"([["\n", "\n"]])"), "taken");
  EXPECT_THAT(with("/model/merges", R"([["\n", "a"]])"), HasSubstr("with a line feed in it"));
  EXPECT_THAT(with("/normalizer", R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})"),
              HasSubstr("a space goes before each text"));
  EXPECT_THAT(with("/added_tokens/0/lstrip", "true"), HasSubstr("takes the spaces beside it"));
}

}  // namespace
}  // namespace sft::engine
