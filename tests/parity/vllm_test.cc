#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/parity/golden_case.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"
#include "worker/engine/export/vllm_adapter.h"

// PEFT's own adapters of stacks, written as vLLM reads them: what each expert's linears add to the
// weights is what PEFT's files say.

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

constexpr char kPrefix[] = "base_model.model.";

struct VllmCase {
  const char* model;
  const char* block;    // in names of files of PEFT and vLLM
  const char* stacks;   // PEFT's module of both stacks, in a block
  const char* experts;  // vLLM's module of experts
  const char* gate;
  const char* up;
  const char* down;

  friend void PrintTo(const VllmCase& c, std::ostream* out) { *out << c.model; }
};

std::filesystem::path CaseDir(const std::string& model) { return GoldenDir() / "families" / model; }

void Write(const std::string& model, const char* adapter, const TempDir& out) {
  WriteVllmAdapter({.model_dir = CaseDir(model),
                    .adapter_dir = CaseDir(model) / adapter,
                    .text_dir = {},
                    .target = out / "vllm"});
}

// The names of a file that begin so.
std::set<std::string> NamesOf(const SafetensorsFile& file, const std::string& start) {
  std::set<std::string> names;
  for (const auto& [name, info] : file.tensors()) {
    if (name.starts_with(start)) names.insert(name);
  }
  return names;
}

class VllmParityTest : public testing::TestWithParam<VllmCase> {
 protected:
  void SetUp() override {
    Write(GetParam().model, "adapter", out_);
    peft_ = SafetensorsFile::Open(CaseDir(GetParam().model) / "adapter/adapter_model.safetensors");
    vllm_ = SafetensorsFile::Open(out_ / "vllm/adapter_model.safetensors");
  }

  // What a linear of vLLM's file adds to its weight, the scale left out.
  Tensor Added(const std::string& module) const {
    return at::matmul(vllm_->View(module + ".lora_B.weight"),
                      vllm_->View(module + ".lora_A.weight"));
  }

  // The same of expert `e` of a stack in PEFT's file: rows by expert, columns by rank, then expert.
  Tensor AddedByPeft(const std::string& module, int64_t e, int64_t experts) const {
    const Tensor a = peft_->View(module + ".lora_A.weight");
    const Tensor b = peft_->View(module + ".lora_B.weight");
    const int64_t rank = a.size(0) / experts;
    Tensor sum = at::matmul(b.narrow(1, e, 1), a.narrow(0, e * rank, 1));
    for (int64_t j = 1; j < rank; ++j) {
      sum = sum + at::matmul(b.narrow(1, j * experts + e, 1), a.narrow(0, e * rank + j, 1));
    }
    return sum;
  }

  const TempDir out_;
  std::shared_ptr<const SafetensorsFile> peft_, vllm_;
};

TEST_P(VllmParityTest, EachExpertAddsWhatPeftAdds) {
  const VllmCase& c = GetParam();
  const ModelConfig config = ReadConfig(CaseDir(c.model));
  int64_t layers = 0;
  std::set<std::string> left = NamesOf(*vllm_, kPrefix);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const plan::LayerShape shape = config.Layer(layer);
    if (shape.experts == 0) continue;
    ++layers;
    const std::string block = fmt::format("{}{}.{}.", kPrefix, c.block, layer);
    for (int64_t e = 0; e < shape.experts; ++e) {
      const std::string expert = fmt::format("{}{}.{}.", block, c.experts, e);
      const Tensor gate_up = AddedByPeft(block + c.stacks + ".base_layer", e, shape.experts);
      const Tensor down = AddedByPeft(block + c.stacks, e, shape.experts);
      const int64_t size = shape.intermediate;
      EXPECT_LT(RelativeError(Added(expert + c.gate), gate_up.narrow(0, 0, size)), 1e-6);
      EXPECT_LT(RelativeError(Added(expert + c.up), gate_up.narrow(0, size, size)), 1e-6);
      EXPECT_LT(RelativeError(Added(expert + c.down), down), 1e-6);
      for (const char* linear : {c.gate, c.up, c.down}) {
        for (const char* factor : {".lora_A.weight", ".lora_B.weight"}) {
          EXPECT_EQ(left.erase(expert + linear + factor), 1U);
        }
      }
    }
  }
  ASSERT_GT(layers, 0);
  // All else as PEFT has it, and nothing of it is left out.
  EXPECT_EQ(left.size() + 4 * layers, peft_->tensors().size());
  for (const std::string& name : left) {
    EXPECT_TRUE(at::equal(vllm_->View(name), peft_->View(name))) << name;
  }
}

TEST_P(VllmParityTest, ItsConfigurationNamesLinearsAlone) {
  std::ifstream file(out_ / "vllm/adapter_config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  const auto targets = config["target_modules"].get<std::set<std::string>>();
  for (const char* linear : {GetParam().gate, GetParam().up, GetParam().down, "q_proj"}) {
    EXPECT_TRUE(targets.contains(linear)) << linear;
  }
  EXPECT_FALSE(config.contains("target_parameters"));
  const AdapterConfig of_peft = ReadAdapter(CaseDir(GetParam().model) / "adapter").config;
  EXPECT_EQ(config["r"], of_peft.r);
  EXPECT_EQ(config["lora_alpha"], of_peft.alpha);
}

constexpr char kLayers[] = "model.layers", kOfMlp[] = "mlp.experts";
constexpr char kGate[] = "gate_proj", kUp[] = "up_proj", kDown[] = "down_proj";

INSTANTIATE_TEST_SUITE_P(
    Families, VllmParityTest,
    testing::Values(VllmCase{"qwen3_moe", kLayers, kOfMlp, kOfMlp, kGate, kUp, kDown},
                    VllmCase{"qwen3_moe_mixed", kLayers, kOfMlp, kOfMlp, kGate, kUp, kDown},
                    VllmCase{"qwen3_next", kLayers, kOfMlp, kOfMlp, kGate, kUp, kDown},
                    VllmCase{"glm4_moe", kLayers, kOfMlp, kOfMlp, kGate, kUp, kDown},
                    VllmCase{"mixtral", kLayers, kOfMlp, "block_sparse_moe.experts", "w1", "w3",
                             "w2"},
                    VllmCase{"gemma4_moe_tied", kLayers, "experts", "experts", kGate, kUp, kDown},
                    VllmCase{"gemma4_moe_multimodal_tied", "model.language_model.layers", "experts",
                             "experts", kGate, kUp, kDown}),
    [](const auto& info) { return info.param.model; });

TEST(VllmAdapterTest, WhatTheLayoutCannotHoldIsRefusedWithWhatToServe) {
  const auto said = [](const char* model, const char* adapter) -> std::string {
    const TempDir out;
    try {
      Write(model, adapter, out);
    } catch (const UserError& error) {
      return std::string(error.what()) + " | " + error.advice();
    }
    return "";
  };
  EXPECT_THAT(said("qwen3_tied", "adapter"),
              HasSubstr("this qwen3 model has no experts, and vLLM reads its adapters as they are "
                        "| serve what the job delivered: sftctl download JOB"));
  for (const char* model : {"gpt_oss", "qwen3_5_moe"}) {
    EXPECT_THAT(said(model, "adapter"),
                HasSubstr("vLLM reads the stacks of " + ReadConfig(CaseDir(model)).family +
                          " models as they are"));
  }
  EXPECT_THAT(said("qwen3_moe", "some_adapter"),
              HasSubstr("in model.layers.0 one of the two stacks of experts has no adapter"));
  EXPECT_THAT(said("qwen3_moe_mixed", "some_adapter"),
              HasSubstr("rank_pattern and alpha_pattern would be held against other names | serve "
                        "the merged model: sftctl export JOB --merged"));
}

}  // namespace
}  // namespace sft::engine
