#include "worker/engine/model/adapters.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
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

at::Tensor FactorA(uint64_t seed, spec::LoraInit init) {
  return InitialFactor({"x.lora_A.weight", {8, 400}, ParamRole::kLoraA}, seed, init);
}

TEST(InitialFactorTest, IsKaimingUniformInARepeatsAndIsZeroInB) {
  const at::Tensor values = FactorA(42, spec::LoraInit::kKaiming);
  EXPECT_LE(values.abs().max().item<float>(), 1.0 / std::sqrt(400.0));
  EXPECT_GT(values.abs().max().item<float>(), 0.95 / std::sqrt(400.0));
  EXPECT_NEAR(values.mean().item<float>(), 0.0, 0.002);
  EXPECT_TRUE(at::equal(values, FactorA(42, spec::LoraInit::kKaiming)));
  EXPECT_FALSE(at::equal(values, FactorA(43, spec::LoraInit::kKaiming)));
  for (const auto init : {spec::LoraInit::kKaiming, spec::LoraInit::kGaussian}) {
    const ParamInfo b{"x.lora_B.weight", {9, 8}, ParamRole::kLoraB};
    EXPECT_EQ(InitialFactor(b, 42, init).abs().sum().item<float>(), 0.0f);
  }
}

// As PEFT's "gaussian": normal with a deviation of 1 / r.
TEST(InitialFactorTest, GaussianIsNormalWithOneOverTheRank) {
  const at::Tensor values = FactorA(42, spec::LoraInit::kGaussian);
  EXPECT_NEAR(values.mean().item<float>(), 0.0, 0.01);
  EXPECT_NEAR(values.std().item<float>(), 1.0 / 8, 0.005);
  // Two thirds lie within the deviation, one in 22 beyond two of them; uniform values never do.
  EXPECT_NEAR((values.abs() < 1.0 / 8).to(at::kFloat).mean().item<float>(), 0.683, 0.03);
  EXPECT_NEAR((values.abs() > 2.0 / 8).to(at::kFloat).mean().item<float>(), 0.0455, 0.015);
  EXPECT_TRUE(at::equal(values, FactorA(42, spec::LoraInit::kGaussian)));
  EXPECT_FALSE(at::equal(values, FactorA(43, spec::LoraInit::kGaussian)));
}

// An adapter of r 2 for the queries of both layers.
Adapter SmallAdapter() {
  Adapter adapter;
  adapter.config.r = 2;
  adapter.config.alpha = 2;  // scale 1
  for (const char* layer : {"0", "1"}) {
    const std::string module = std::string("model.layers.") + layer + ".self_attn.q_proj";
    adapter.pairs.push_back(
        {.module = module, .a = at::ones({2, 32}) * 3, .b = at::ones({32, 2}) * 5, .scale = 1});
  }
  return adapter;
}

std::string FitRefusal(const Adapter& adapter, const spec::JobSpec& job) {
  ModelLayout layout = Layout();
  PrepareLayout(layout, job);
  try {
    FitAdapter(adapter, layout, job);
  } catch (const UserError& error) {
    return std::string(error.what()) + "; " + error.advice();
  }
  return "accepted";
}

TEST(FitAdapterTest, ALargerRankIsPaddedAndTheProductStays) {
  spec::JobSpec job = LoraJob({"q_proj", "k_proj"});  // r 4
  job.lora.alpha = 8;                                 // scale 2
  ModelLayout layout = Layout();
  PrepareLayout(layout, job);
  const Adapter given = SmallAdapter(), fitted = FitAdapter(given, layout, job);
  EXPECT_EQ(fitted.config.r, 4);
  ASSERT_EQ(fitted.pairs.size(), 4u) << "the keys start fresh";
  for (const LoraPair& pair : fitted.pairs) {
    EXPECT_EQ(pair.a.size(0), 4);
    EXPECT_TRUE(pair.a.narrow(0, 2, 2).any().item<bool>()) << "what is added can learn";
    const at::Tensor product = at::matmul(pair.b, pair.a) * 2.0;
    const bool old = pair.module.ends_with("q_proj");
    EXPECT_TRUE(at::allclose(product, at::ones_like(product) * (old ? 30.0 : 0.0))) << pair.module;
  }
}

TEST(FitAdapterTest, EachModuleHasItsOwnRankAndScale) {
  spec::JobSpec job = LoraJob({"q_proj"});
  job.lora.r = 1;
  job.lora.alpha = 1;
  job.lora.rank_pattern = {"0.self_attn.q_proj=2", "q_proj=4"};
  job.lora.alpha_pattern = {"1.self_attn.q_proj=2"};
  ModelLayout layout = Layout();
  PrepareLayout(layout, job);
  const std::string module = "model.layers.1.self_attn.q_proj.lora_B.weight";
  for (const UnitInfo& unit : layout.units) {
    const int second = unit.Find(module);
    if (second < 0) continue;
    EXPECT_EQ(unit.params[second].scale_ratio, 0.5);
  }
  const Adapter fitted = FitAdapter(SmallAdapter(), layout, job);
  ASSERT_EQ(fitted.pairs.size(), 2u);
  EXPECT_EQ(fitted.pairs[0].a.size(0), 2);
  EXPECT_EQ(fitted.pairs[1].a.size(0), 4);
  for (const LoraPair& pair : fitted.pairs) {
    EXPECT_TRUE(at::allclose(at::matmul(pair.b, pair.a) * 0.5, at::ones({32, 32}) * 30.0));
  }
  job.lora.rank_pattern = {"0.self_attn.q_proj=2"};
  EXPECT_NE(
      FitRefusal(SmallAdapter(), job).find("r = 2 for model.layers.1.self_attn.q_proj, the job 1"),
      std::string::npos);
  job.lora.rank_pattern = {"k_proj=2"};
  ModelLayout fresh = Layout();
  EXPECT_THROW(PrepareLayout(fresh, job), UserError) << "it counts for no linear";
}

TEST(FitAdapterTest, WhatWouldBeLostIsRefusedByName) {
  EXPECT_EQ(FitRefusal(SmallAdapter(), LoraJob({"q_proj"})), "accepted");
  spec::JobSpec job = LoraJob({"q_proj"});
  job.lora.r = 1;
  EXPECT_NE(FitRefusal(SmallAdapter(), job).find("set lora.r = 2 or more"), std::string::npos);
  EXPECT_NE(FitRefusal(SmallAdapter(), LoraJob({"k_proj"})).find("layers.0.self_attn.q_proj"),
            std::string::npos);
  Adapter biased = SmallAdapter();
  biased.others.push_back({"model.layers.0.self_attn.q_proj.bias", at::ones({32})});
  EXPECT_NE(FitRefusal(biased, LoraJob({"q_proj"})).find("set lora.bias"), std::string::npos);
  Adapter dora = SmallAdapter();
  dora.config.use_dora = true;
  EXPECT_NE(FitRefusal(dora, LoraJob({"q_proj"})).find("set lora.use_dora = true"),
            std::string::npos);
  Adapter wide = SmallAdapter();
  wide.pairs[1].a = at::ones({2, 48});
  EXPECT_NE(FitRefusal(wide, LoraJob({"q_proj"})).find("another shape"), std::string::npos);
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
