#include "worker/engine/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

AdapterConfig Config() {
  return {.r = 2,
          .alpha = 4,
          .dropout = 0.05,
          .target_modules = {"q_proj", "v_proj"},
          .base_model = "org/model"};
}

std::vector<LoraPair> Pairs() {
  const auto pair = [](const std::string& module, int64_t in, int64_t out) {
    return LoraPair{module, at::arange(2 * in, at::kFloat).view({2, in}),
                    at::arange(2 * out, at::kFloat).view({out, 2})};
  };
  return {pair("model.layers.0.self_attn.q_proj", 6, 4),
          pair("model.layers.0.self_attn.v_proj", 6, 3)};
}

std::string MessageOfReading(const std::filesystem::path& dir) {
  try {
    ReadAdapter(dir);
  } catch (const UserError& error) {
    return error.what();
  }
  return "read";
}

TEST(AdapterTest, HasPeftsNamesAndConfiguration) {
  const TempDir dir;
  WriteAdapter({.target = dir / "out"}, Config(), Pairs());
  EXPECT_EQ(Listing(dir / "out"), "adapter_config.json adapter_model.safetensors");
  const auto file = SafetensorsFile::Open(dir / "out/adapter_model.safetensors");
  EXPECT_EQ(file->tensors().size(), 4u);
  EXPECT_TRUE(file->Contains("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
  EXPECT_TRUE(file->Contains("base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight"));
  const json config = ParseJson(GetFile(dir / "out/adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(DumpJson(config["lora_alpha"]), "4");
  EXPECT_EQ(config["lora_dropout"], 0.05);
  EXPECT_EQ(config["target_modules"], json::array({"q_proj", "v_proj"}));
  EXPECT_EQ(config["bias"], "none");
  EXPECT_EQ(config["use_rslora"], false);
  EXPECT_EQ(config["base_model_name_or_path"], "org/model");
}

TEST(AdapterTest, IsReadBackAsItWasWritten) {
  const TempDir dir;
  AdapterConfig config = Config();
  config.alpha = 4.5;
  config.use_rslora = true;
  config.bias = "all";
  const std::vector<NamedTensor> biases{
      {"model.layers.0.self_attn.q_proj.bias", at::full({4}, 1.5f)},
      {"model.layers.0.input_layernorm.bias", at::full({6}, 2.5f)}};
  WriteAdapter({.target = dir / "out"}, config, Pairs(), biases);
  EXPECT_TRUE(SafetensorsFile::Open(dir / "out/adapter_model.safetensors")
                  ->Contains("base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias"));
  const Adapter adapter = ReadAdapter(dir / "out");
  EXPECT_EQ(adapter.config.alpha, 4.5);
  EXPECT_TRUE(adapter.config.use_rslora);
  EXPECT_EQ(adapter.config.target_modules, config.target_modules);
  EXPECT_EQ(adapter.config.base_model, "org/model");
  const std::vector<LoraPair> want = Pairs();
  ASSERT_EQ(adapter.pairs.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(adapter.pairs[i].module, want[i].module);
    EXPECT_TRUE(adapter.pairs[i].a.equal(want[i].a));
    EXPECT_TRUE(adapter.pairs[i].b.equal(want[i].b));
  }
  ASSERT_EQ(adapter.others.size(), 2u);
  EXPECT_EQ(adapter.others[0].name, "model.layers.0.input_layernorm.bias");
  EXPECT_EQ(adapter.others[1].name, "model.layers.0.self_attn.q_proj.bias");
  EXPECT_TRUE(adapter.others[1].tensor.equal(biases[0].tensor));
}

TEST(AdapterTest, ModulesTrainedWholeAreReadBackUnderTheModelsNames) {
  const TempDir dir;
  AdapterConfig config = Config();
  config.modules_to_save = {"embed_tokens"};
  config.ensure_weight_tying = true;
  const std::string table = "model.embed_tokens.weight";
  WriteAdapter({.target = dir / "out", .tied_table = table}, config, Pairs(),
               std::vector<NamedTensor>{{table, at::full({5, 6}, 1.5f)}});
  const auto file = SafetensorsFile::Open(dir / "out/adapter_model.safetensors");
  EXPECT_TRUE(file->Contains("base_model.model.model.embed_tokens.weight"));
  EXPECT_TRUE(file->Contains("base_model.model.lm_head.weight"));
  const json written = ParseJson(GetFile(dir / "out/adapter_config.json"));
  EXPECT_EQ(written["modules_to_save"], json::array({"embed_tokens"}));
  EXPECT_EQ(written["ensure_weight_tying"], true);
  const Adapter adapter = ReadAdapter(dir / "out");
  EXPECT_EQ(adapter.config.modules_to_save, config.modules_to_save);
  EXPECT_TRUE(adapter.config.ensure_weight_tying);
  const auto values = adapter.Values(/*tied_head=*/true);
  EXPECT_EQ(values.size(), 5u);
  EXPECT_TRUE(values.at(table).equal(at::full({5, 6}, 1.5f)));
  EXPECT_EQ(adapter.Values(/*tied_head=*/false).size(), 6u);
}

TEST(AdapterTest, MagnitudesOfDoraAreReadBack) {
  const TempDir dir;
  AdapterConfig config = Config();
  config.use_dora = true;
  std::vector<LoraPair> pairs = Pairs();
  EXPECT_THROW(WriteAdapter({.target = dir / "out"}, config, pairs), InternalError);
  for (LoraPair& pair : pairs) pair.magnitude = at::arange(pair.b.size(0), at::kFloat);
  EXPECT_THROW(WriteAdapter({.target = dir / "out"}, Config(), pairs), InternalError);
  WriteAdapter({.target = dir / "out"}, config, pairs);
  EXPECT_EQ(ParseJson(GetFile(dir / "out/adapter_config.json"))["use_dora"], true);
  EXPECT_TRUE(SafetensorsFile::Open(dir / "out/adapter_model.safetensors")
                  ->Contains("base_model.model.model.layers.0.self_attn.q_proj."
                             "lora_magnitude_vector"));
  const Adapter adapter = ReadAdapter(dir / "out");
  EXPECT_TRUE(adapter.config.use_dora);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(adapter.pairs[i].magnitude.equal(pairs[i].magnitude));
  }
}

// PEFT's adapters without ensure_weight_tying: the trained embedding is no longer the head.
TEST(AdapterTest, AnAdapterThatUntiesTheHeadIsRefused) {
  const auto values = [](std::vector<NamedTensor> others) {
    Adapter adapter{Config(), Pairs(), std::move(others)};
    return adapter.Values(/*tied_head=*/true);
  };
  const NamedTensor table{"model.embed_tokens.weight", at::ones({5, 6})};
  const NamedTensor head{"lm_head.weight", at::zeros({5, 6})};
  EXPECT_THROW(values({table}), UserError);
  EXPECT_THROW(values({head}), UserError);
  EXPECT_THROW(values({table, head}), UserError);
  EXPECT_EQ(values({table, {head.name, table.tensor}}).size(), 5u);
}

TEST(AdapterTest, ScaleFollowsPeft) {
  AdapterConfig config{.r = 16, .alpha = 32};
  EXPECT_DOUBLE_EQ(config.Scale(), 2);
  config.use_rslora = true;
  EXPECT_DOUBLE_EQ(config.Scale(), 8);
}

TEST(AdapterTest, NotFiniteWeightsAreWrittenAsTheyAre) {
  const TempDir dir;
  std::vector<LoraPair> pairs = Pairs();
  pairs[0].a.fill_(std::numeric_limits<float>::quiet_NaN());
  WriteAdapter({.target = dir / "out"}, Config(), pairs);
  EXPECT_TRUE(ReadAdapter(dir / "out").pairs[0].a.isnan().all().item<bool>());
}

TEST(AdapterTest, RefusesFactorsThatContradictTheRank) {
  const TempDir dir;
  AdapterConfig config = Config();
  config.r = 3;
  EXPECT_THROW(WriteAdapter({.target = dir / "out"}, config, Pairs()), InternalError);
  EXPECT_THROW(WriteAdapter({.target = dir / "out"}, config, {}), InternalError);
  EXPECT_EQ(Listing(dir.path()), "");
}

TEST(AdapterTest, RanksAndAlphasOfSingleModulesAreWrittenAndRead) {
  const TempDir dir;
  AdapterConfig config = Config();  // r 2, alpha 4
  config.rank_pattern = {"v_proj=3", "layers.[1-9]+.q_proj=1"};
  config.alpha_pattern = {"v_proj=4.5"};
  std::vector<LoraPair> pairs = Pairs();
  pairs[1].a = at::ones({3, 6});
  pairs[1].b = at::ones({3, 3});
  WriteAdapter({.target = dir / "out"}, config, pairs);
  const json written = ParseJson(GetFile(dir / "out/adapter_config.json"));
  EXPECT_EQ(written["rank_pattern"], (json{{"v_proj", 3}, {"layers.[1-9]+.q_proj", 1}}));
  EXPECT_EQ(written["alpha_pattern"], (json{{"v_proj", 4.5}}));
  const Adapter adapter = ReadAdapter(dir / "out");
  EXPECT_EQ(adapter.config.rank_pattern, config.rank_pattern);
  EXPECT_EQ(adapter.config.alpha_pattern, config.alpha_pattern);
  EXPECT_EQ(adapter.pairs[0].scale, 2.0);
  EXPECT_EQ(adapter.pairs[1].scale, 1.5);
  config.rank_pattern = {};
  EXPECT_THROW(WriteAdapter({.target = dir / "x"}, config, pairs), InternalError);
}

TEST(AdapterTest, ReadingSaysWhatIsWrong) {
  const TempDir dir;
  EXPECT_THAT(MessageOfReading(dir.path()), HasSubstr("adapter_config.json"));
  WriteAdapter({.target = dir / "a"}, Config(), Pairs());
  const json good = ParseJson(GetFile(dir / "a/adapter_config.json"));
  const auto with = [&](const char* key, const json& value) {
    json changed = good;
    changed[key] = value;
    PutFile(dir / "a/adapter_config.json", DumpJson(changed));
    return MessageOfReading(dir / "a");
  };
  EXPECT_THAT(with("peft_type", "IA3"), HasSubstr("peft_type is not \"LORA\""));
  EXPECT_THAT(with("use_dora", true), HasSubstr("use_dora is set, but model.layers.0.self_attn."));
  EXPECT_THAT(with("modules_to_save", json::array({1})), HasSubstr("\"modules_to_save\" holds no"));
  EXPECT_THAT(with("rank_pattern", {{"q_proj", 4}}), HasSubstr("[4, 2], but r is 4"));
  EXPECT_THAT(with("rank_pattern", {{"q_proj", "4"}}), HasSubstr("no number for \"q_proj\""));
  EXPECT_THAT(with("rank_pattern", {{"(?<=x)q_proj", 4}}), HasSubstr("no regular expression"));
  EXPECT_THAT(with("alpha_pattern", json::array({1})), HasSubstr("no object of patterns"));
  EXPECT_THAT(with("r", "two"), HasSubstr("\"r\" has the wrong type"));
  EXPECT_THAT(with("r", 0), HasSubstr("r is 0"));
  EXPECT_THAT(with("r", 3), HasSubstr("have the shapes [2, 6] and [4, 2], but r is 3"));
  PutFile(dir / "a/adapter_config.json", "[]");
  EXPECT_THAT(MessageOfReading(dir / "a"), HasSubstr("not a JSON object"));

  PutFile(dir / "a/adapter_config.json", DumpJson(good));
  const auto holding = [&](const std::string& key) {
    WriteSafetensors(dir / "a/adapter_model.safetensors",
                     std::vector<NamedTensor>{{key, at::zeros({2, 6})}});
    return MessageOfReading(dir / "a");
  };
  EXPECT_THAT(holding("base_model.model.x.lora_A.weight"), HasSubstr("only one of"));
  EXPECT_THAT(holding("model.x.lora_A.weight"), HasSubstr("does not begin with"));
  EXPECT_THAT(holding("base_model.model.x.weight"), HasSubstr("none of modules_to_save"));
  EXPECT_THAT(holding("base_model.model.x.bias"), HasSubstr("no LoRA factor"));
  std::filesystem::remove(dir / "a/adapter_model.safetensors");
  EXPECT_THAT(MessageOfReading(dir / "a"), HasSubstr("adapter_model.safetensors: No such file"));
}

}  // namespace
}  // namespace sft::engine
