// Models that `sft-rank prepare` refuses, before anything is loaded onto a GPU: each message names
// the file, key or tensor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/io/file.h"
#include "tests/unit/worker/rank/rank_process.h"

namespace sft::rank {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

class BadModelTest : public PreparedModelTest {
 protected:
  BadModelTest() { config_ = ParseJson(io::ReadFile(dir_ + "/model/config.json").value()); }

  // The weights stay those of the config.json before.
  void WriteConfig() { Write("model/config.json", DumpJson(config_)); }
  Shapes Whole() const { return ShapesOf(DumpJson(config_)); }
  void WriteWeights(const Shapes& shapes) {
    Write("model/model.safetensors", SafetensorsOf(shapes));
  }
  // Two shards and their index in place of model.safetensors.
  void WriteShards(const Shapes& first, const Shapes& second, const json& index) {
    fs::remove(dir_ + "/model/model.safetensors");
    Write("model/model-1.safetensors", SafetensorsOf(first));
    Write("model/model-2.safetensors", SafetensorsOf(second));
    Write("model/model.safetensors.index.json", DumpJson(json{{"weight_map", index}}));
  }
  void ExpectRefused(const std::string& message, const std::string& code = "bad_model") {
    EXPECT_EQ(Prepare(), channel::kExitUserError) << output_;
    ExpectUserError(code, message);
    EXPECT_FALSE(LastEvent("prepare").value("advice", "").empty()) << "what would work";
  }

  json config_;
};

constexpr char kQueries[] = "model.layers.0.self_attn.q_proj.weight";

TEST_F(BadModelTest, AFamilyThatIsNotKnown) {
  config_["model_type"] = "gemma2";
  WriteConfig();
  ExpectRefused(
      "config.json: \"model_type\" \"gemma2\" is not supported (the nearest is gemma3_text: "
      "attention scores and logits are capped by tanh); llama, ");
  config_["model_type"] = "unheard_of";
  config_["num_local_experts"] = 8;
  WriteConfig();
  ExpectRefused("the nearest by its keys is llama: its feed-forward layers are mixtures of expert");
}

TEST_F(BadModelTest, AConfigThatIsNone) {
  for (const char* text : {"", "{", "[]", "null"}) {
    Write("model/config.json", text);
    ExpectRefused("/model: config.json is not a JSON object");
  }
  Write("model/config.json", "{}");
  ExpectRefused("config.json: \"model_type\" is missing");
}

TEST_F(BadModelTest, SizesThatNoModelHas) {
  for (const auto& [key, value, message] : std::vector<std::tuple<const char*, json, std::string>>{
           {"hidden_size", -64, "\"hidden_size\" must be a whole number above 0, is -64"},
           {"vocab_size", 0, "\"vocab_size\" must be a whole number above 0, is 0"},
           {"intermediate_size", "96", "\"intermediate_size\" must be a whole number above 0"},
           {"num_hidden_layers", 1.5, "\"num_hidden_layers\" must be a whole number above 0"},
           {"num_attention_heads", 5, "\"num_key_value_heads\" 2 does not divide 5"},
           {"num_attention_heads", 6, "\"num_attention_heads\" 6 does not divide hidden_size 64"},
           {"head_dim", 7, "\"head_dim\" must be even"}}) {
    const json before = config_;
    config_[key] = value;
    WriteConfig();
    ExpectRefused(message);
    config_ = before;
  }
}

TEST_F(BadModelTest, AConfigThatItsTensorsContradict) {
  for (const auto& [key, value, tensor] : std::vector<std::tuple<const char*, json, std::string>>{
           {"vocab_size", 2048,
            "model.embed_tokens.weight has shape [1024, 64], config.json asks "
            "for [2048, 64]"},
           {"head_dim", 32,
            "model.layers.0.self_attn.q_proj.weight has shape [64, 64], config.json "
            "asks for [128, 64]"},
           {"intermediate_size", 80, "mlp.gate_proj.weight has shape [96, 64], config.json asks "},
           {"num_hidden_layers", 2, "the weights hold no tensor model.layers.1."},
           {"attention_bias", true, "the weights hold no tensor model.layers.0.self_attn.q_proj.b"},
           {"tie_word_embeddings", false, "the weights hold no tensor lm_head.weight, which "}}) {
    const json before = config_;
    config_[key] = value;
    WriteConfig();
    ExpectRefused(tensor);
    config_ = before;
  }
}

TEST_F(BadModelTest, TensorsThatAreMissingOrTooMany) {
  Shapes less = Whole();
  less.erase(kQueries);
  WriteWeights(less);
  ExpectRefused(std::string("/model: the weights hold no tensor ") + kQueries);
  Shapes more = Whole();
  more["model.layers.0.self_attn.q_norm.weight"] = {16};
  WriteWeights(more);
  ExpectRefused("the weights hold model.layers.0.self_attn.q_norm.weight, which the architecture");
}

TEST_F(BadModelTest, ShardsThatAreNotOneCheckpoint) {
  Shapes first = Whole(), second;
  second[kQueries] = first[kQueries];
  first.erase(kQueries);
  json index;
  for (const auto& [name, shape] : first) index[name] = "model-1.safetensors";
  json whole = index;
  whole[kQueries] = "model-2.safetensors";
  WriteShards(first, second, whole);
  EXPECT_EQ(Prepare(), channel::kExitOk) << output_;
  WriteShards(Whole(), second, whole);
  ExpectRefused(
      "model-1.safetensors and model-2.safetensors both hold the tensor \"" + std::string(kQueries),
      "doubled_tensor");
  WriteShards(first, second, index);
  ExpectRefused(std::string("the weights hold no tensor ") + kQueries);
  WriteShards(first, {}, whole);
  ExpectRefused("places \"" + std::string(kQueries) + "\" in model-2.safetensors, which does not",
                "broken_index");
  const std::string second_shard = dir_ + "/model/model-2.safetensors";
  WriteShards(first, second, whole);
  fs::resize_file(second_shard, 0);
  ExpectRefused("model-2.safetensors: the file has 0 bytes", "broken_safetensors");
  fs::remove(second_shard);
  ExpectRefused("model-2.safetensors is missing", "missing_shard");
  fs::create_symlink("model-2.safetensors", second_shard);
  ExpectRefused("model-2.safetensors: Too many levels of symbolic links", "file_not_readable");
}

TEST_F(BadModelTest, FilesThatAreCutShortOrLeadNowhere) {
  const std::string weights = dir_ + "/model/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 1);
  ExpectRefused("/model/model.safetensors: the header promises", "truncated_file");
  fs::resize_file(weights, 20);
  ExpectRefused("/model/model.safetensors: the file has 20 bytes and its header alone",
                "broken_safetensors");
  fs::remove(weights);
  fs::create_symlink("model.safetensors", weights);
  ExpectRefused("/model/model.safetensors: Too many levels", "file_not_readable");
  fs::remove(dir_ + "/model/config.json");
  fs::create_symlink("config.json", dir_ + "/model/config.json");
  ExpectRefused("cannot read " + dir_ + "/model/config.json");
}

TEST_F(BadModelTest, TokenizersAndTemplatesThatLeadNowhere) {
  EXPECT_EQ(Prepare(), channel::kExitOk) << output_;
  for (const char* name : {"chat_template.jinja", "tokenizer.json"}) {
    const std::string path = dir_ + "/model/" + name;
    fs::remove(path);
    fs::create_symlink(name, path);
    EXPECT_EQ(RunLaunch("prepare"), channel::kExitUserError) << output_;
    EXPECT_THAT(LastEvent("prepare").value("message", ""), ::testing::HasSubstr(name));
  }
}

TEST_F(BadModelTest, RopesAndActivationsThatAreNotKnown) {
  config_["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 2.0}};
  WriteConfig();
  ExpectRefused("config.json: rope_scaling: \"rope_type\" \"dynamic\" is not supported; default, ");
  config_.erase("rope_scaling");
  config_["hidden_act"] = "relu2";
  WriteConfig();
  ExpectRefused("config.json: \"hidden_act\" \"relu2\" is not supported; silu and ");
}

TEST_F(BadModelTest, QuantisationsThatAreNotReadOrNotThere) {
  config_["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
  WriteConfig();
  ExpectRefused("config.json: quantization_config: \"quant_method\" \"gptq\" is not read: use the");
  config_["quantization_config"] = {
      {"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}};
  WriteConfig();
  ExpectRefused("training.use_qlora: the model's weights are stored in 4 bits");
  launch_.job_json = R"({"training": {"use_qlora": true}})";
  ExpectRefused("says that the weights are stored in 4 bits, but none is");
}

TEST_F(BadModelTest, TemplatesThatFail) {
  EXPECT_EQ(Prepare("{% for m in messages %}{{ m.content }"), channel::kExitUserError) << output_;
  EXPECT_THAT(LastEvent("prepare").value("message", ""), ::testing::HasSubstr("chat_template"));
  EXPECT_EQ(Prepare("{{ raise_exception('roles must alternate') }}"), channel::kExitUserError);
  EXPECT_THAT(
      LastEvent("prepare").value("message", ""),
      ::testing::HasSubstr("train.jsonl: 1 of 1 rows cannot be used:\n  line 1: the chat template "
                           "refuses the conversation: roles must alternate"))
      << output_;
}

TEST_F(BadModelTest, TargetsThatMatchNothingOrInPart) {
  const auto refused = [&](const std::string& targets, const std::string& message) {
    launch_.job_json = R"({"lora": {"target_modules": [)" + targets + "]}}";
    ExpectRefused(message, "bad_target_module");
    EXPECT_THAT(LastEvent("prepare").value("advice", ""),
                ::testing::HasSubstr("choose from mlp.down_proj, mlp.gate_proj"));
  };
  refused(R"("c_attn")", "lora.target_modules: \"c_attn\" matches no module of the model");
  refused(R"("q_proj", "qkv_proj")", "lora.target_modules: \"qkv_proj\" matches no module");
  refused(R"("q_proj", "lm_head")", "lora.target_modules: \"lm_head\" matches no module");
  refused(R"("embed_tokens")", "\"embed_tokens\" is model.embed_tokens, which cannot be adapted");
  refused(R"("proj")", "lora.target_modules: \"proj\" matches no module of the model");
}

TEST_F(BadModelTest, WhatASubmitRefusesIsRefusedInTheSameWords) {
  launch_.job_json = R"({"hyperparameters": {"optimizer": "adamw_8bit"},
                         "lora": {"r": 1, "target_modules": ["k_proj"]}})";
  ExpectRefused("hyperparameters.optimizer: adamw_8bit keeps the states of tensors from 4096 ");
}

}  // namespace
}  // namespace sft::rank
