#include "common/spec/module_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/spec/resolve_testing.h"

namespace sft::spec {
namespace {

using ::testing::HasSubstr;

LoraSizes Sizes(std::vector<std::string> ranks, std::vector<std::string> alphas = {}) {
  JobSpec::Lora lora;
  lora.r = 16;
  lora.alpha = 32;
  lora.rank_pattern = std::move(ranks);
  lora.alpha_pattern = std::move(alphas);
  return LoraSizes::Make(lora).value();
}

std::string Refusal(std::vector<std::string> ranks, std::vector<std::string> alphas = {}) {
  JobSpec::Lora lora;
  lora.rank_pattern = std::move(ranks);
  lora.alpha_pattern = std::move(alphas);
  return std::string(Message(LoraSizes::Make(lora).status()));
}

TEST(ModulePatternsTest, APatternIsTheEndOfANameBehindADotOrAllOfIt) {
  const LoraSizes sizes = Sizes({"q_proj=8", "layers.[01].mlp.(up|down)_proj=4",
                                 "^model.layers.2.self_attn.k_proj=2", "lm_head|o_proj=1"});
  const std::string block = "model.layers.";
  EXPECT_EQ(sizes.RankOf(block + "0.self_attn.q_proj"), 8);
  EXPECT_EQ(sizes.RankOf("q_proj"), 8);
  EXPECT_EQ(sizes.RankOf(block + "0.self_attn.kq_proj"), 16) << "no dot before it";
  EXPECT_EQ(sizes.RankOf(block + "0.self_attn.q_proj.x"), 16) << "not the end";
  EXPECT_EQ(sizes.RankOf(block + "1.mlp.down_proj"), 4);
  EXPECT_EQ(sizes.RankOf(block + "2.mlp.down_proj"), 16);
  EXPECT_EQ(sizes.RankOf(block + "2.self_attn.k_proj"), 2);
  EXPECT_EQ(sizes.RankOf("x." + block + "2.self_attn.k_proj"), 16);
  EXPECT_EQ(sizes.RankOf(block + "2.self_attn.o_proj"), 1) << "an alternative stands in its group";
}

TEST(ModulePatternsTest, TheFirstThatMatchesCountsAndTheScaleFollowsRankAndAlpha) {
  const LoraSizes sizes = Sizes({"layers.0.q_proj=2", "q_proj=8"}, {"q_proj=4.5", ".*=1"});
  EXPECT_EQ(sizes.RankOf("layers.0.q_proj"), 2);
  EXPECT_EQ(sizes.RankOf("layers.1.q_proj"), 8);
  EXPECT_EQ(sizes.ScaleOf("layers.0.q_proj"), 2.25);
  EXPECT_EQ(sizes.ScaleOf("layers.1.q_proj"), 4.5 / 8);
  EXPECT_EQ(sizes.ScaleOf("layers.1.k_proj"), 1.0 / 16);
  EXPECT_EQ(Sizes({}).ScaleOf("q_proj"), 2.0);
  JobSpec::Lora stable;
  stable.alpha = 32;
  stable.use_rslora = true;
  stable.rank_pattern = {"q_proj=64"};
  EXPECT_EQ(LoraSizes::Make(stable)->ScaleOf("q_proj"), 4.0);
}

TEST(ModulePatternsTest, WhatIsNoPatternOrNumberIsRefusedByName) {
  for (const char* item : {"q_proj", "=8", "q_proj=", "q_proj=x", "q_proj=8x", "q_proj= 8"}) {
    EXPECT_THAT(Refusal({item}), HasSubstr("is not PATTERN=NUMBER")) << item;
  }
  for (const char* number : {"0", "-1", "1.5", "8193", "1e9"}) {
    EXPECT_THAT(Refusal({std::string("q_proj=") + number}), HasSubstr("what lora.r may be"));
  }
  EXPECT_THAT(Refusal({}, {"q_proj=0"}), HasSubstr("what lora.alpha may be"));
  EXPECT_THAT(Refusal({}, {"q_proj=nan"}), HasSubstr("is not PATTERN=NUMBER"));
  EXPECT_THAT(Refusal({"(q=8"}), HasSubstr("\"(q\" is no regular expression"));
  EXPECT_THAT(Refusal({"(?=q)=8"}), HasSubstr("look-around"));
  EXPECT_THAT(Refusal({"q=8", "q=9"}), HasSubstr("for the second time"));
  EXPECT_THAT(Refusal({std::string(600, 'q') + "=8"}), HasSubstr("longer than 512"));
}

TEST(ModulePatternsTest, APatternThatCountsForNothingIsFound) {
  const std::vector<std::string> adapted = {"layers.0.q_proj", "layers.0.k_proj"};
  EXPECT_FALSE(Sizes({"q_proj=8"}, {"k_proj=1"}).FindIdle(adapted));
  const auto missing = Sizes({"q_proj=8", "v_proj=4"}).FindIdle(adapted);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->key, "lora.rank_pattern");
  EXPECT_THAT(missing->message, HasSubstr("\"v_proj\" counts for no linear"));
  const auto behind = Sizes({}, {"._proj=8", "q_proj=4"}).FindIdle(adapted);
  ASSERT_TRUE(behind) << "the pattern before it takes all";
  EXPECT_EQ(behind->key, "lora.alpha_pattern");
}

TEST(ModulePatternsTest, AJobFileNamesTheKeyThatIsWrong) {
  const auto problems = [](const std::string& lora) {
    return Describe(ResolveText(Minimal("[lora]\n" + lora)).problems);
  };
  EXPECT_EQ(problems("rank_pattern = [\"q_proj=8\"]\nalpha_pattern = [\"q_proj=16\"]"), "");
  EXPECT_THAT(problems("rank_pattern = [\"q_proj\"]"),
              HasSubstr("lora.rank_pattern:7: \"q_proj\" is not PATTERN=NUMBER"));
  EXPECT_THAT(problems("alpha_pattern = [\"(=8\"]"),
              HasSubstr("lora.alpha_pattern:7: \"(\" is no regular expression"));
}

}  // namespace
}  // namespace sft::spec
