#include "worker/engine/model/adapters.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "worker/engine/base/error.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"

namespace sft::engine {
namespace {

ModelLayout Layout() {
  return MakeLayout(ParseConfig(R"({"model_type": "qwen2", "vocab_size": 96,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64})",
                                "config.json"));
}

spec::JobSpec LoraJob(std::vector<std::string> targets) {
  spec::JobSpec job;
  job.training.mode = spec::Mode::kLora;
  job.lora.r = 4;
  job.lora.target_modules = std::move(targets);
  return job;
}

std::string Refusal(const std::vector<std::string>& targets) {
  ModelLayout layout = Layout();
  try {
    PrepareLayout(layout, LoraJob(targets));
  } catch (const UserError& error) {
    return std::string(error.what()) + " " + error.advice();
  }
  return "accepted";
}

TEST(PrepareLayoutTest, AdaptsOnlyTheTargetsAndFreezesTheRest) {
  ModelLayout layout = Layout();
  PrepareLayout(layout, LoraJob({"q_proj", "layers.1.mlp.down_proj"}));
  // q: 4 * (32 + 32) in both layers; down of layer 1: 4 * (48 + 32).
  EXPECT_EQ(layout.trainable_parameters(), 2 * 4 * 64 + 4 * 80);
  EXPECT_EQ(layout.total_parameters(), Layout().total_parameters());
  EXPECT_EQ(layout.first_trainable(), 1);
  EXPECT_EQ(layout.units[1].Find("model.layers.0.mlp.down_proj.lora_A.weight"), -1);
  EXPECT_GE(layout.units[2].Find("model.layers.1.mlp.down_proj.lora_A.weight"), 0);
}

TEST(PrepareLayoutTest, QloraQuantisesEveryLinearOfTheBlocksAndNothingElse) {
  ModelLayout layout = Layout();
  spec::JobSpec job = LoraJob({"q_proj"});
  job.training.use_qlora = true;
  PrepareLayout(layout, job);
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      EXPECT_EQ(param.quantized, param.role == ParamRole::kLinear) << param.name;
    }
  }
}

TEST(PrepareLayoutTest, BiasesAreTrainedAsTheJobSays) {
  const auto trained = [](spec::Bias bias) {
    ModelLayout layout = Layout();
    spec::JobSpec job = LoraJob({"q_proj"});
    job.lora.bias = bias;
    PrepareLayout(layout, job);
    return layout.trainable_parameters() - 2 * 4 * 64;
  };
  EXPECT_EQ(trained(spec::Bias::kNone), 0);
  EXPECT_EQ(trained(spec::Bias::kLoraOnly), 2 * 32);
  EXPECT_EQ(trained(spec::Bias::kAll), 2 * (32 + 16 + 16));
}

TEST(PrepareLayoutTest, ModulesToSaveAreTrainedWhole) {
  const auto trained = [](std::vector<std::string> modules) {
    ModelLayout layout = Layout();
    spec::JobSpec job = LoraJob({"q_proj"});
    job.lora.modules_to_save = std::move(modules);
    PrepareLayout(layout, job);
    return layout.trainable_parameters() - 2 * 4 * 64;
  };
  EXPECT_EQ(trained({"embed_tokens"}), 96 * 32);
  EXPECT_EQ(trained({"model.embed_tokens", "lm_head"}), 2 * 96 * 32);
  // Ends of names, as PEFT: the norms of the blocks, too.
  EXPECT_EQ(trained({"norm"}), (2 * 2 + 1) * 32);
  EXPECT_EQ(trained({"model.norm"}), 32);
  EXPECT_THROW(trained({"q_proj"}), UserError);
}

TEST(PrepareLayoutTest, ATargetThatMatchesNothingIsRefusedWithTheModulesThereAre) {
  EXPECT_NE(Refusal({"q_proj", "query"}).find("\"query\" matches no module"), std::string::npos);
  EXPECT_NE(Refusal({"query"}).find("self_attn.q_proj"), std::string::npos);
  EXPECT_NE(Refusal({"lm_head"}).find("cannot be adapted"), std::string::npos);
  EXPECT_EQ(Refusal({"all-linear"}), "accepted");
}

TEST(InitialFactorTest, IsKaimingUniformInARepeatsAndIsZeroInB) {
  const ParamInfo a{"x.lora_A.weight", {8, 400}, ParamRole::kLoraA};
  const at::Tensor values = InitialFactor(a, 42);
  EXPECT_LE(values.abs().max().item<float>(), 1.0 / std::sqrt(400.0));
  EXPECT_GT(values.abs().max().item<float>(), 0.95 / std::sqrt(400.0));
  EXPECT_NEAR(values.mean().item<float>(), 0.0, 0.002);
  EXPECT_TRUE(at::equal(values, InitialFactor(a, 42)));
  EXPECT_FALSE(at::equal(values, InitialFactor(a, 43)));
  EXPECT_EQ(
      InitialFactor({"x.lora_B.weight", {9, 8}, ParamRole::kLoraB}, 42).abs().sum().item<float>(),
      0.0f);
}

TEST(ScalingTest, RankStabilisedLoraDividesByTheRoot) {
  spec::JobSpec::Lora lora;
  lora.r = 16;
  lora.alpha = 32;
  EXPECT_EQ(ScalingOf(lora).scale, 2.0);
  lora.use_rslora = true;
  EXPECT_EQ(ScalingOf(lora).scale, 8.0);
}

}  // namespace
}  // namespace sft::engine
