#include "common/plan/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/common/plan/jobs.h"
#include "tests/unit/common/plan/shapes.h"

namespace sft::plan {
namespace {

using ::testing::HasSubstr;

TEST(ParametersTest, PublishedCountsAreReached) {
  EXPECT_EQ(BaseParameters(SmolLm2()), 134'515'008);
  EXPECT_EQ(BaseParameters(Qwen3Of32B()), 32'762'123'264);
  // Qwen2.5-0.5B: biases on q, k and v, a tied head.
  EXPECT_EQ(BaseParameters({.family = "qwen2",
                            .hidden = 896,
                            .layers = 24,
                            .heads = 14,
                            .kv_heads = 2,
                            .head_dim = 64,
                            .intermediate = 4864,
                            .vocab = 151936,
                            .tied_head = true,
                            .qkv_bias = true}),
            494'032'768);
}

TEST(ParametersTest, TheUnitsHoldTheWholeBase) {
  for (const ModelShape& shape : {SmolLm2(), Qwen3Of32B()}) {
    const auto units = MakeUnits(shape, Full());
    ASSERT_TRUE(units.ok());
    EXPECT_EQ(units->size(), static_cast<size_t>(shape.layers + 2));
    const ParameterCounts counts = CountParameters(*units);
    EXPECT_EQ(counts.total, BaseParameters(shape));
    EXPECT_EQ(counts.trainable, counts.total);
  }
}

TEST(ParametersTest, AnAdapterHasRTimesInPlusOut) {
  // q: 576 -> 576, v: 576 -> 192, in each of 30 blocks.
  const auto units = MakeUnits(SmolLm2(), Lora(8, {"q_proj", "v_proj"}));
  ASSERT_TRUE(units.ok()) << units.status();
  EXPECT_EQ(CountParameters(*units).trainable, 30 * 8 * ((576 + 576) + (576 + 192)));
  EXPECT_EQ(CountParameters(*units).total, BaseParameters(SmolLm2()));
}

TEST(ParametersTest, LinearsWithRanksOfTheirOwnAreCountedByThem) {
  spec::JobSpec job = Lora(8, {"q_proj", "v_proj"});
  job.lora.rank_pattern = {"layers.0.self_attn.q_proj=32", "v_proj=2"};
  const auto units = MakeUnits(SmolLm2(), job);
  ASSERT_TRUE(units.ok()) << units.status();
  EXPECT_EQ(CountParameters(*units).trainable, (29 * 8 + 32) * (576 + 576) + 30 * 2 * (576 + 192));
  const std::vector<BlockMatrices> blocks = MatricesOf(SmolLm2(), job);
  EXPECT_EQ(blocks[0].qkv.rank, 34);
  EXPECT_EQ(blocks[1].qkv.rank, 10);
  job.lora.rank_pattern.push_back("o_proj=4");
  EXPECT_THAT(std::string(Message(MakeUnits(SmolLm2(), job).status())),
              HasSubstr("lora.rank_pattern: \"o_proj\" counts for no linear"));
}

TEST(ParametersTest, AllLinearIsTheSevenLinears) {
  const auto all = MakeUnits(SmolLm2(), Lora(16, {"all-linear"}));
  const auto seven = MakeUnits(SmolLm2(), Lora(16, spec::JobSpec().lora.target_modules));
  EXPECT_EQ(CountParameters(*all).trainable, 4'884'480);
  EXPECT_EQ(CountParameters(*seven).trainable, 4'884'480);
}

TEST(ParametersTest, BiasesAreTrainedAsTheJobSays) {
  const ModelShape shape{.family = "qwen2",
                         .hidden = 64,
                         .layers = 2,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 16,
                         .intermediate = 96,
                         .vocab = 128,
                         .qkv_bias = true};
  const auto biases = [&shape](spec::Bias bias) {
    spec::JobSpec job = Lora(4, {"q_proj"});
    job.lora.bias = bias;
    return CountParameters(*MakeUnits(shape, job)).trainable - 2 * 4 * (64 + 64);
  };
  EXPECT_EQ(biases(spec::Bias::kNone), 0);
  EXPECT_EQ(biases(spec::Bias::kLoraOnly), 2 * 64);
  EXPECT_EQ(biases(spec::Bias::kAll), 2 * (64 + 32 + 32));
}

TEST(ParametersTest, TargetsAreEndsOfModuleNames) {
  const auto count = [](std::string target) {
    const auto units = MakeUnits(SmolLm2(), Lora(1, {std::move(target)}));
    return units.ok() ? CountParameters(*units).trainable : -1;
  };
  EXPECT_EQ(count("self_attn.q_proj"), 30 * 1152);
  EXPECT_EQ(count("layers.3.self_attn.q_proj"), 1152);
  EXPECT_EQ(count("model.layers.29.self_attn.q_proj"), 1152);
  EXPECT_EQ(count("_proj"), -1);  // an end, but not after a dot
}

TEST(ParametersTest, ATargetThatMatchesNothingIsNamed) {
  const auto units = MakeUnits(SmolLm2(), Lora(8, {"q_proj", "c_attn"}));
  ASSERT_FALSE(units.ok());
  EXPECT_THAT(std::string(Message(units.status())), HasSubstr("\"c_attn\" matches no linear"));
  EXPECT_EQ(Message(units.status()).find("modules_to_save"), std::string::npos);
  for (const char* name : {"lm_head", "embed_tokens"}) {
    EXPECT_THAT(std::string(Message(MakeUnits(SmolLm2(), Lora(8, {name})).status())),
                HasSubstr(std::string("lora.modules_to_save trains ") + name + " whole"));
  }
  EXPECT_THAT(std::string(Message(units.status())), HasSubstr("q_proj, k_proj"));
}

TEST(ParametersTest, OnlyBlockLinearsAreQuantised) {
  spec::JobSpec job = Lora(8, {"q_proj"});
  job.training.use_qlora = true;
  const auto units = MakeUnits(SmolLm2(), job);
  ASSERT_TRUE(units.ok());
  int64_t quantised = 0;
  for (const Unit& unit : *units) {
    for (const Parameter& p : unit.parameters) quantised += p.quantized ? p.elements : 0;
  }
  // 106,168,320 of the 134,515,008 are in the linears of the blocks.
  EXPECT_EQ(quantised, 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576));
}

TEST(MatchesTargetTest, TakesWholeNamesAndEndsAfterADot) {
  EXPECT_TRUE(MatchesTarget("model.layers.0.self_attn.q_proj", "q_proj"));
  EXPECT_TRUE(MatchesTarget("model.layers.0.self_attn.q_proj", "self_attn.q_proj"));
  EXPECT_TRUE(MatchesTarget("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj"));
  EXPECT_FALSE(MatchesTarget("model.layers.0.self_attn.q_proj", "proj"));
  EXPECT_FALSE(MatchesTarget("model.layers.0.self_attn.q_proj", "attn.q_proj"));
}

TEST(CheckJobTest, ModulesToSaveAreEmbeddingsNormsAndHeads) {
  ModelShape shape = SmolLm2();
  const auto problem = [&](std::vector<std::string> modules, bool keep_tied = false) {
    spec::JobSpec job = Lora(8, {"q_proj"});
    job.lora.modules_to_save = std::move(modules);
    job.lora.ensure_weight_tying = keep_tied;
    const auto found = CheckJob(shape, job);
    if (!found) return std::string("none");
    EXPECT_EQ(found->key, "lora.modules_to_save");
    return found->message;
  };
  EXPECT_THAT(problem({"embed"}), HasSubstr("\"embed\" matches no embedding, norm or head of the "
                                            "model; it has embed_tokens, input_layernorm, lm_head, "
                                            "norm, post_attention_layernorm"));
  EXPECT_THAT(problem({"layers.3.mlp.up_proj"}), HasSubstr("a linear of a block"));
  EXPECT_THAT(problem({"mlp"}), HasSubstr("matches no embedding"));
  for (const char* half : {"embed_tokens", "lm_head"}) {
    EXPECT_THAT(problem({half}),
                HasSubstr("set lora.ensure_weight_tying = true to train it as both"));
    EXPECT_EQ(problem({half}, /*keep_tied=*/true), "none");
  }
  EXPECT_EQ(problem({"norm"}), "none");
  shape.tied_head = false;
  EXPECT_EQ(problem({"embed_tokens", "lm_head", "norm"}), "none");
  EXPECT_THAT(problem({""}), HasSubstr("matches no"));
}

TEST(ParametersTest, DoraAddsAMagnitudeForEachOutput) {
  spec::JobSpec job = Lora(16, {"all-linear"});
  job.lora.use_dora = true;
  const ModelShape shape = SmolLm2();
  const int64_t outputs = 576 + 2 * 192 + 576 + 2 * 1536 + 576;
  EXPECT_EQ(CountParameters(*MakeUnits(shape, job)).trainable, 4'884'480 + 30 * outputs);
}

TEST(ParametersTest, ModulesToSaveCountOnce) {
  ModelShape shape = SmolLm2();
  const auto trained = [&](std::vector<std::string> modules) {
    spec::JobSpec job = Lora(8, {"q_proj"});
    job.lora.modules_to_save = std::move(modules);
    job.lora.ensure_weight_tying = true;
    return CountParameters(*MakeUnits(shape, job)).trainable;
  };
  const int64_t adapters = trained({});
  EXPECT_EQ(trained({"embed_tokens"}) - adapters, shape.vocab * shape.hidden);
  EXPECT_EQ(trained({"embed_tokens", "lm_head"}) - adapters, shape.vocab * shape.hidden);
  EXPECT_EQ(trained({"norm"}) - adapters, (2 * shape.layers + 1) * shape.hidden);
  shape.tied_head = false;
  EXPECT_EQ(trained({"embed_tokens", "lm_head"}) - adapters, 2 * shape.vocab * shape.hidden);
}

TEST(CheckJobTest, EightBitStatesNeedATensorThatIsLargeEnough) {
  ModelShape shape = SmolLm2();
  spec::JobSpec job;
  job.training.mode = spec::Mode::kLora;
  job.lora.target_modules = {"q_proj"};
  job.lora.r = 8;
  job.hyperparameters.optimizer = spec::Optimizer::kAdamW8bit;
  EXPECT_FALSE(CheckJob(shape, job).has_value());  // 8 x 576
  job.lora.r = 4;
  const auto problem = CheckJob(shape, job);
  ASSERT_TRUE(problem.has_value());
  EXPECT_EQ(problem->key, "hyperparameters.optimizer");
  EXPECT_THAT(problem->message, ::testing::HasSubstr("has 2304: use adamw"));
  EXPECT_FALSE(MakeUnits(shape, job).ok());
  job.training.mode = spec::Mode::kFullFinetune;
  EXPECT_FALSE(CheckJob(shape, job).has_value());
}

}  // namespace
}  // namespace sft::plan
