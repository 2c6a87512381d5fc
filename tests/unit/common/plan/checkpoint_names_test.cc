#include "common/plan/checkpoint_names.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

constexpr std::string_view kTinySizes =
    R"("hidden_size":16,"intermediate_size":32,"num_attention_heads":2,"num_key_value_heads":1,)"
    R"("num_hidden_layers":2,"vocab_size":40,"tie_word_embeddings":true)";

ModelConfig TinyModel(const std::string& type, const std::string& more = "") {
  const auto config =
      ParseModelConfig("{\"model_type\":\"" + type + "\"," + std::string(kTinySizes) + more + "}");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

HeaderTensors WholeModel(const ModelShape& shape) {
  HeaderTensors tensors;
  for (const TensorUnit& unit : TensorsOf(shape)) {
    for (const TensorInfo& tensor : unit.tensors) {
      HeaderTensor header{"BF16", tensor.shape, "model.safetensors"};
      if (tensor.transposed) std::reverse(header.shape.begin(), header.shape.end());
      tensors[tensor.name] = header;
    }
  }
  return tensors;
}

constexpr char kUpWeight[] = "model.layers.1.mlp.up_proj.weight";

TEST(CheckpointNamesTest, GptTwoMayLeaveOutTheStartOfNamesAndHoldsMasks) {
  const auto config =
      ParseModelConfig(R"({"model_type":"gpt2","n_embd":16,"n_layer":2,"n_head":2,"vocab_size":40,)"
                       R"("n_positions":8})");
  ASSERT_TRUE(config.ok()) << config.status();
  HeaderTensors tensors;
  for (const auto& [name, tensor] : WholeModel(*config)) {
    tensors[name.substr(std::string("transformer.").size())] = tensor;
  }
  tensors["h.1.attn.bias"] = {"F32", {1, 1, 8, 8}, ""};
  EXPECT_EQ(FindContradiction(*config, tensors), "");
  tensors["h.2.attn.bias"] = {"F32", {1, 1, 8, 8}, ""};
  EXPECT_EQ(FindContradiction(*config, tensors), UnknownTensor("h.2.attn.bias"));
}

TEST(CheckpointNamesTest, OtherPartsOfAMultimodalModelAreNotLookedAt) {
  ModelConfig config = TinyModel("llama");
  config.prefix = "language_model.";
  HeaderTensors tensors = WholeModel(config);
  tensors["vision_tower.patch.weight"] = {"U8", {1}, ""};
  EXPECT_EQ(FindContradiction(config, tensors), "");
  tensors["language_model.model.patch.weight"] = {"BF16", {1}, ""};
  EXPECT_EQ(FindContradiction(config, tensors), UnknownTensor("language_model.model.patch.weight"));
}

// Packed bytes have other shapes: what bitsandbytes wrote beside them says which.
TEST(CheckpointNamesTest, WeightsInFourBitsAreKnownByWhatStandsBesideThem) {
  ModelConfig config = TinyModel("llama");
  config.stored.form = StoredForm::kNf4;
  HeaderTensors tensors = WholeModel(config);
  tensors[kUpWeight] = {"U8", {256, 1}, ""};
  EXPECT_EQ(FindContradiction(config, tensors), ": " + OtherShape(kUpWeight, {256, 1}, {32, 16}));
  for (const char* beside : {kNf4State, ".absmax", ".quant_map"}) {
    tensors[kUpWeight + std::string(beside)] = {"U8", {1}, ""};
  }
  EXPECT_EQ(FindContradiction(config, tensors), "");
  // In a model that is not stored so they have no meaning.
  config.stored.form = StoredForm::kPlain;
  tensors[kUpWeight] = {"BF16", {32, 16}, ""};
  EXPECT_EQ(FindContradiction(config, tensors), UnknownTensor(kUpWeight + std::string(".absmax")));
}

TEST(CheckpointNamesTest, WeightsInFp8NeedTheirScales) {
  ModelConfig config = TinyModel("llama");
  config.stored.form = StoredForm::kFp8;
  HeaderTensors tensors = WholeModel(config);
  tensors[kUpWeight].type = "F8_E4M3";
  const std::string scales = kUpWeight + std::string(kFp8Scales);
  EXPECT_EQ(FindContradiction(config, tensors), NoScales(kUpWeight, scales));
  tensors[scales] = {"F32", {1}, ""};
  tensors["model.layers.1.mlp.up_proj.input_scale"] = {"F32", {1}, ""};
  EXPECT_EQ(FindContradiction(config, tensors), "");
  config.stored.form = StoredForm::kPlain;
  EXPECT_EQ(FindContradiction(config, tensors), OtherType(kUpWeight, "F8_E4M3"));
}

TEST(CheckpointNamesTest, ExpertsInFourBitsAreNamedWithWhatToUse) {
  ModelConfig config = TinyModel("qwen3_moe", R"(,"num_experts":2,"num_experts_per_tok":1,)"
                                              R"("moe_intermediate_size":8)");
  config.stored.form = StoredForm::kNf4;
  HeaderTensors tensors;
  for (const TensorUnit& unit : TensorsOf(config)) {
    for (const TensorInfo& tensor : unit.tensors) {
      for (const std::string& part : tensor.parts) {
        tensors[part] = {"BF16", tensor.ShapeInFiles(), "model.safetensors"};
      }
      if (tensor.parts.empty()) tensors[tensor.name] = {"BF16", tensor.shape, "model.safetensors"};
    }
  }
  // As transformers 5 writes them with bitsandbytes: attention in 4 bits, experts as they were.
  const std::string query = "model.layers.0.self_attn.q_proj.weight";
  tensors[query + kNf4State] = {"U8", {9}, ""};
  EXPECT_EQ(FindContradiction(config, tensors), "");
  // As transformers before 5 did, and as Unsloth does of gpt-oss's stacks.
  for (const std::string name : {"model.layers.1.mlp.experts.0.down_proj.weight",
                                 "model.layers.1.mlp.experts.gate_up_projs.0.weight"}) {
    HeaderTensors more = tensors;
    more[name + kNf4State] = {"U8", {9}, ""};
    EXPECT_EQ(FindContradiction(config, more),
              name +
                  " is stored in 4 bits, which is not read of experts: use the original weights "
                  "(of gpt-oss those with experts in MXFP4, which QLoRA keeps as they are; all "
                  "others it quantises when they are loaded)");
  }
  EXPECT_EQ(
      ExpertInFourBits("model.layers.1.mlp.shared_experts.up_proj.weight" + std::string(kNf4State)),
      "");
}

}  // namespace
}  // namespace sft::plan
