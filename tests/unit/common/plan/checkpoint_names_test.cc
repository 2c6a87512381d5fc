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

}  // namespace
}  // namespace sft::plan
