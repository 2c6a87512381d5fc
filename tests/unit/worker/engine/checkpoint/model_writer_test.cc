#include "worker/engine/checkpoint/model_writer.h"

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

class ModelWriterTest : public ::testing::Test {
 protected:
  ModelWriterTest() {
    std::filesystem::create_directory(dir_ / "source");
    PutFile(dir_ / "source/config.json",
            R"({"model_type":"llama","torch_dtype":"float32","quantization_config":{"bits":4}})");
    PutFile(dir_ / "source/tokenizer.json", "{}");
    PutFile(dir_ / "source/tokenizer_config.json", R"({"chat_template":"old","eos_token":"</s>"})");
    PutFile(dir_ / "source/unrelated.bin", "x");
    for (int i = 0; i < 4; ++i) {
      tensors_.push_back({"t" + std::to_string(i), at::full({10}, i, at::kBFloat16)});
      infos_.push_back({.name = tensors_.back().name, .dtype = at::kBFloat16, .shape = {10}});
    }
  }
  void WriteAll(uint64_t max_shard_bytes, const std::string& chat_template = "") {
    ModelWriter writer({.target = dir_ / "out",
                        .source = dir_ / "source",
                        .chat_template = chat_template,
                        .max_shard_bytes = max_shard_bytes},
                       infos_);
    for (auto named = tensors_.rbegin(); named != tensors_.rend(); ++named) {
      writer.Write(named->name, named->tensor);
    }
    writer.Commit();
  }
  TempDir dir_;
  std::vector<NamedTensor> tensors_;
  std::vector<TensorInfo> infos_;
};

TEST_F(ModelWriterTest, SmallModelsAreOneFileWithConfigAndTokenizer) {
  WriteAll(1000);
  EXPECT_EQ(Listing(dir_ / "out"),
            "config.json model.safetensors tokenizer.json tokenizer_config.json");
  const json config = ParseJson(GetFile(dir_ / "out/config.json"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_FALSE(config.contains("quantization_config"));
  const ModelFiles files = ModelFiles::Open(dir_ / "out");
  for (const NamedTensor& named : tensors_) EXPECT_TRUE(files.View(named.name).equal(named.tensor));
}

TEST_F(ModelWriterTest, LargeModelsAreShardedWithAnIndex) {
  // 20 bytes a tensor: two fit a shard of 45 bytes.
  WriteAll(45);
  EXPECT_EQ(Listing(dir_ / "out"),
            "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
            "model.safetensors.index.json tokenizer.json tokenizer_config.json");
  const json index = ParseJson(GetFile(dir_ / "out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 80);
  EXPECT_EQ(index["weight_map"]["t1"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["t2"], "model-00002-of-00002.safetensors");
  const ModelFiles files = ModelFiles::Open(dir_ / "out");
  for (const NamedTensor& named : tensors_) EXPECT_TRUE(files.View(named.name).equal(named.tensor));
}

TEST_F(ModelWriterTest, ATensorAboveTheLimitHasAShardOfItsOwn) {
  WriteAll(1);
  EXPECT_THAT(Listing(dir_ / "out"), HasSubstr("model-00004-of-00004.safetensors"));
}

TEST_F(ModelWriterTest, TheTemplateOfTheJobReplacesTheModels) {
  WriteAll(1000, "{{ new }}");
  EXPECT_EQ(GetFile(dir_ / "out/chat_template.jinja"), "{{ new }}");
  const json config = ParseJson(GetFile(dir_ / "out/tokenizer_config.json"));
  EXPECT_EQ(config["chat_template"], "{{ new }}");
  EXPECT_EQ(config["eos_token"], "</s>");
}

TEST_F(ModelWriterTest, ATemplateOfAGivenNameIsWrittenAsItsText) {
  PutFile(dir_ / "source/tokenizer_config.json",
          R"({"chat_template":[{"name":"default","template":"d"},{"name":"rag","template":"r"}]})");
  WriteAll(1000, "rag");
  EXPECT_EQ(GetFile(dir_ / "out/chat_template.jinja"), "r");
  EXPECT_EQ(ParseJson(GetFile(dir_ / "out/tokenizer_config.json"))["chat_template"], "r");
}

TEST_F(ModelWriterTest, ATokenizerThatWasMadeIsDelivered) {
  std::filesystem::remove(dir_ / "source/tokenizer.json");
  PutFile(dir_ / "source/config.json", R"({"model_type":"gpt2"})");
  PutFile(dir_ / "source/vocab.json", R"({"a":0,"b":1,"ab":2})");
  PutFile(dir_ / "source/merges.txt", "#version: 0.2\na b\n");
  WriteAll(1000);
  EXPECT_EQ(Listing(dir_ / "out"),
            "config.json merges.txt model.safetensors tokenizer.json tokenizer_config.json "
            "vocab.json");
  const json tokenizer = ParseJson(GetFile(dir_ / "out/tokenizer.json"));
  EXPECT_EQ(tokenizer["model"]["merges"], ParseJson(R"([["a","b"]])"));
  EXPECT_EQ(tokenizer["pre_tokenizer"]["type"], "ByteLevel");
}

TEST_F(ModelWriterTest, AnInterruptedWriteLeavesNothing) {
  {
    ModelWriter writer({.target = dir_ / "out", .source = dir_ / "source"}, infos_);
    writer.Write("t0", tensors_[0].tensor);
  }
  EXPECT_EQ(Listing(dir_.path()), "source");
}

TEST_F(ModelWriterTest, AMissingConfigIsAUserError) {
  std::filesystem::remove(dir_ / "source/config.json");
  EXPECT_THROW(WriteAll(1000), UserError);
  EXPECT_EQ(Listing(dir_.path()), "source");
}

}  // namespace
}  // namespace sft::engine
