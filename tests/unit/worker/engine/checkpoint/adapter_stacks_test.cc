#include "worker/engine/checkpoint/adapter_stacks.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors_writer.h"

namespace sft::engine {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr int64_t kExperts = 3, kRank = 2, kOut = 5, kIn = 4;

TEST(AdapterStacksTest, ColumnsOfTheSecondFactorAreByRankThenExpert) {
  const Tensor ours = at::arange(kExperts * kOut * kRank, at::kFloat).view({-1, kRank});
  const Tensor peft = PeftSecondFactor(ours, kExperts);
  ASSERT_EQ(peft.sizes(), at::IntArrayRef({kOut, kRank * kExperts}));
  for (int64_t e = 0; e < kExperts; ++e) {
    for (int64_t j = 0; j < kRank; ++j) {
      EXPECT_TRUE(
          at::equal(peft.select(1, j * kExperts + e), ours.narrow(0, e * kOut, kOut).select(1, j)));
    }
  }
  EXPECT_TRUE(at::equal(OurSecondFactor(peft, kExperts), ours));
}

TEST(AdapterStacksTest, TheFirstOfTwoParametersIsTheInnerWrapper) {
  EXPECT_THAT(WrapperNames({"m.experts.gate_up_proj", "m.experts.down_proj"}),
              UnorderedElementsAre(Pair("m.experts.gate_up_proj", "m.experts.base_layer"),
                                   Pair("m.experts.down_proj", "m.experts")));
  EXPECT_THAT(WrapperNames({"m.experts.gate_up_proj"}),
              UnorderedElementsAre(Pair("m.experts.gate_up_proj", "m.experts")));
  const std::vector<std::string> both{"experts.gate_up_proj", "down_proj"};
  EXPECT_EQ(StackOf("m.experts.base_layer", both), "m.experts.gate_up_proj");
  EXPECT_EQ(StackOf("m.experts", both), "m.experts.down_proj");
  EXPECT_EQ(StackOf("m.experts", {"gate_up_proj"}), "m.experts.gate_up_proj");
  EXPECT_EQ(StackOf("m.mlp.down_proj", both), "") << "a dense layer's";
  EXPECT_EQ(StackOf("m.self_attn.q_proj", both), "");
  EXPECT_THROW(StackOf("m.experts.base_layer", {"down_proj"}), std::invalid_argument);
}

TEST(AdapterStacksTest, ANameInALayerIsWhatFollowsTheLastNumber) {
  EXPECT_EQ(NameInLayer("model.layers.13.mlp.experts.down_proj"), "mlp.experts.down_proj");
  EXPECT_EQ(NameInLayer("lm_head"), "lm_head");
}

class StackAdapterTest : public testing::Test {
 protected:
  void Write(int64_t rows_of_a, bool dora = false) const {
    const std::string text = dora ? "true" : "false";
    std::ofstream(dir_ / "adapter_config.json")
        << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
               "target_parameters": ["mlp.experts.down_proj"], "use_dora": )"
        << text << "}";
    const std::string key = "base_model.model.model.layers.0.mlp.experts.lora_";
    WriteSafetensors(dir_ / "adapter_model.safetensors",
                     std::vector<NamedTensor>{{key + "A.weight", at::ones({rows_of_a, kIn})},
                                              {key + "B.weight", at::ones({kOut, rows_of_a})}});
  }
  std::string Refusal() const {
    try {
      ReadAdapter(dir_.path());
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  TempDir dir_;
};

TEST_F(StackAdapterTest, TheNumberOfExpertsFollowsFromTheRank) {
  Write(kExperts * kRank);
  const Adapter adapter = ReadAdapter(dir_.path());
  ASSERT_EQ(adapter.pairs.size(), 1u);
  EXPECT_EQ(adapter.pairs[0].module, "model.layers.0.mlp.experts.down_proj");
  EXPECT_EQ(adapter.pairs[0].experts, kExperts);
  EXPECT_EQ(adapter.pairs[0].b.sizes(), at::IntArrayRef({kExperts * kOut, kRank}));
}

TEST_F(StackAdapterTest, FactorsThatAreNoStackAreRefused) {
  for (const int64_t rows : {0, 3}) {
    Write(rows);
    EXPECT_THAT(Refusal(), HasSubstr("the factors of")) << rows;
  }
  Write(kExperts * kRank, /*dora=*/true);
  EXPECT_THAT(Refusal(),
              HasSubstr("mlp.experts.down_proj is a stack of experts, which has no DoRA"));
}

}  // namespace
}  // namespace sft::engine
