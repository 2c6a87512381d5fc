#include "worker/engine/train/base_weights.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"

namespace sft::engine {
namespace {

using at::Tensor;

TEST(BaseWeightsTest, PartsOfRowsMakeTheWholeInRowsThatAreApart) {
  const TempDir dir;
  WriteTinyModel(dir.path());
  const ModelLayout layout = MakeLayout(ReadConfig(dir.path()));
  const BaseWeights base(dir.path(), layout, at::kCPU);
  int matrices = 0, vectors = 0;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      const Tensor whole = base.Read(param, 0, param.numel()).view(param.shape);
      const bool matrix = param.shape.size() == 2;
      (matrix ? matrices : vectors) += 1;
      for (const int64_t part : {int64_t{1}, param.shape.back() * 3 + 1, param.numel() * 2}) {
        // A matrix among others' columns, as where adapters stand beside it.
        const Tensor room = matrix ? at::full({param.shape[0], param.shape[1] + 5}, 7.0)
                                   : at::full({param.shape[0]}, 7.0);
        const Tensor to = matrix ? room.narrow(1, 2, param.shape[1]) : room;
        base.Copy(param, to, part);
        EXPECT_TRUE(to.equal(whole.to(to.scalar_type()))) << param.name << " in parts of " << part;
        if (matrix) {
          EXPECT_EQ(room.select(1, 1).sum().item<float>(), 7.0f * param.shape[0]);
        }
      }
    }
  }
  EXPECT_GT(matrices, 0);
  EXPECT_GT(vectors, 0);
}

// As GPT-2 is published: without the start of all names, and with its masks.
TEST(BaseWeightsTest, MasksOfTheModelsOwnBlocksAreSkipped) {
  const TempDir dir;
  WriteTinyModel(dir.path(), R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2,
                                 "vocab_size": 96, "n_positions": 64})");
  const std::filesystem::path file = dir.path() / "model.safetensors";
  const ModelLayout layout = MakeLayout(ReadConfig(dir.path()));
  const auto open_with = [&](const std::vector<std::string>& more) {
    std::vector<NamedTensor> tensors;
    for (const UnitInfo& unit : layout.units) {
      for (const ParamInfo& param : unit.params) {
        std::vector<int64_t> shape = param.shape;
        if (param.transposed) std::reverse(shape.begin(), shape.end());
        tensors.push_back(
            {param.name.substr(layout.in_files.optional_prefix.size()), at::zeros(shape)});
      }
    }
    for (const std::string& name : more) tensors.push_back({name, at::zeros({1, 1, 4, 4})});
    WriteSafetensors(file, tensors);
    const BaseWeights base(dir.path(), layout, at::kCPU);
  };
  open_with({});
  open_with({"h.0.attn.bias", "h.1.attn.masked_bias"});
  open_with({"transformer.h.1.attn.bias"});
  for (const char* stranger : {"h.2.attn.bias", "h.1.ln_1.attn.bias", "h.11.attn.bias"}) {
    EXPECT_THROW(open_with({stranger}), UserError) << stranger;
  }
}

// Beside a table that it is tied to: the same is nothing new, another would be lost.
TEST(BaseWeightsTest, AHeadThatIsNotTheEmbeddingIsRefusedWhereTheyAreTied) {
  const TempDir dir;
  WriteTinyModel(dir.path(), R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
      "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 96,
      "tie_word_embeddings": true})");
  const ModelLayout layout = MakeLayout(ReadConfig(dir.path()));
  ASSERT_TRUE(layout.tied_head());
  const auto open_with = [&](const Tensor& head) {
    std::vector<NamedTensor> tensors = {{"lm_head.weight", head}};
    for (const UnitInfo& unit : layout.units) {
      for (const ParamInfo& param : unit.params) {
        tensors.push_back({param.name, at::full(param.shape, 0.5)});
      }
    }
    WriteSafetensors(dir.path() / "model.safetensors", tensors);
    const BaseWeights base(dir.path(), layout, at::kCPU);
  };
  open_with(at::full({96, 32}, 0.5));
  EXPECT_THROW(open_with(at::full({96, 32}, 0.25)), UserError);
  EXPECT_THROW(open_with(at::full({95, 32}, 0.5)), UserError);
}

}  // namespace
}  // namespace sft::engine
