#include "common/plan/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/plan/parameters.h"
#include "tests/unit/common/plan/jobs.h"

namespace sft::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelShape ModelOf(const char* config) {
  const auto model = ParseModelConfig(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.value_or(ModelConfig());
}

// Three gated DeltaNets, then attention.
ModelShape Hybrid() { return ModelOf(R"({"model_type": "qwen3_5_text", "num_hidden_layers": 8})"); }

// A dense layer, then experts.
ModelShape Mixed() {
  return ModelOf(R"({"model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 4,
      "num_experts_per_tok": 2, "mlp_only_layers": [0]})");
}

// The last two layers attend to keys and values of the first two.
ModelShape Sharing() {
  return ModelOf(R"({"model_type": "gemma4_text", "num_hidden_layers": 4, "num_kv_shared_layers": 2,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                      "full_attention"]})");
}

std::vector<std::string> Remarks(const ModelShape& shape, std::vector<std::string> targets) {
  std::vector<std::string> texts;
  for (const spec::Problem& remark : WarnOfTargets(shape, Lora(8, std::move(targets)))) {
    EXPECT_EQ(remark.key, "lora.target_modules");
    texts.push_back(remark.message);
  }
  return texts;
}

const std::vector<std::string> kSeven = spec::JobSpec().lora.target_modules;

TEST(WarnOfTargetsTest, MixersWithOtherNamesAreToldOf) {
  const auto says = AllOf(
      HasSubstr("attention, or what stands in its place, gets no adapter in 6 of the 8 layers of "
                "this qwen3_5_text"),
      HasSubstr(
          "add \"in_proj_qkv\", \"in_proj_z\", \"in_proj_b\", \"in_proj_a\", \"out_proj\", or "
          "write [\"all-linear\"]"));
  EXPECT_THAT(Remarks(Hybrid(), kSeven), ElementsAre(says));
  EXPECT_THAT(Remarks(Hybrid(), {"q_proj", "v_proj"}), ElementsAre(says));
  EXPECT_THAT(Remarks(Hybrid(), {"out_proj"}),
              ElementsAre(HasSubstr("in 2 of the 8 layers of this qwen3_5_text model, where the "
                                    "linears have other names than those listed: add \"q_proj\"")));
}

TEST(WarnOfTargetsTest, FeedForwardLayersWithOtherNamesAreToldOf) {
  EXPECT_THAT(
      Remarks(Mixed(), {"q_proj", "mlp.down_proj"}),
      ElementsAre(HasSubstr("the feed-forward layer gets no adapter in 3 of the 4 layers of "
                            "this qwen3_moe model, where the linears have other names than "
                            "those listed: add \"experts.gate_up_proj\", "
                            "\"experts.down_proj\"")));
  EXPECT_THAT(Remarks(Mixed(), {"q_proj", "experts.down_proj"}), IsEmpty());  // it says so
}

TEST(WarnOfTargetsTest, WhatIsLeftOutInAllLayersIsMeant) {
  for (const ModelShape& shape : {SmolLm2(), Hybrid(), Mixed(), Sharing()}) {
    EXPECT_THAT(Remarks(shape, {"all-linear"}), IsEmpty());
    EXPECT_THAT(Remarks(shape, {"layers.3.self_attn.q_proj"}), IsEmpty());
  }
  EXPECT_THAT(Remarks(Hybrid(), {"gate_proj", "up_proj", "down_proj"}), IsEmpty());
  EXPECT_THAT(Remarks(Hybrid(), {"q_proj", "in_proj_qkv"}), IsEmpty());
  EXPECT_THAT(Remarks(Mixed(), kSeven), IsEmpty());
  EXPECT_THAT(Remarks(Mixed(), {"q_proj"}), IsEmpty());
  EXPECT_THAT(Remarks(SmolLm2(), {"q_proj", "v_proj"}), IsEmpty());
  EXPECT_THAT(WarnOfTargets(Hybrid(), Full()), IsEmpty());
}

TEST(WarnOfTargetsTest, LayersThatShareKeysHaveNoneToAdapt) {
  EXPECT_THAT(Remarks(Sharing(), kSeven), IsEmpty());
  EXPECT_THAT(Remarks(Sharing(), {"k_proj", "v_proj"}), IsEmpty());
}

TEST(CheckTargetsTest, ARefusalSaysWhereTheNameIs) {
  const auto problem = [](const ModelShape& shape, const char* target) {
    const auto found = CheckTargets(shape, Lora(8, {"q_proj", target}));
    return found ? found->message : "none";
  };
  // A layer of the other kind, a layer that is not there, and a module with another name.
  EXPECT_THAT(problem(Hybrid(), "layers.2.self_attn.q_proj"),
              HasSubstr("takes all; q_proj is model.layers.3.self_attn.q_proj, and in 1 other"));
  EXPECT_THAT(problem(SmolLm2(), "layers.30.self_attn.q_proj"),
              HasSubstr("q_proj is model.layers.0.self_attn.q_proj, and in 29 other layers"));
  EXPECT_THAT(problem(SmolLm2(), "attention.q_proj"),
              HasSubstr("q_proj is model.layers.0.self_attn.q_proj"));
  for (const char* pattern : {"q_proj|v_proj", "layers.[0-9].self_attn.q_proj", ".*proj"}) {
    EXPECT_THAT(problem(SmolLm2(), pattern), HasSubstr("names of linears or ends of names, not "));
  }
  EXPECT_EQ(problem(SmolLm2(), "layers.3.self_attn.q_proj"), "none");
}

}  // namespace
}  // namespace sft::plan
