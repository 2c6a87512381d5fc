// Folders without tokenizer.json, against transformers (tests/parity/tokenizers/make_goldens.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/tokenizer_files.h"

namespace sft::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

fs::path ConverterGoldens() { return fs::path(SFT_SOURCE_DIR) / "tests/parity/tokenizers"; }

// The folder of a golden case, as transformers read it.
void MakeFolder(const Json& golden, const TestFolder& folder) {
  for (const auto& [target, source] : golden.at("files").items()) {
    fs::copy_file(ConverterGoldens() / "inputs" / source.get<std::string>(),
                  folder.path() / target);
  }
  for (const auto& [name, content] : golden.at("json").items()) {
    folder.Write(name, DumpJson(content));
  }
}

class ConvertedTokenizerTest : public ::testing::Test {
 protected:
  void Copy(const std::string& source, const std::string& target) const {
    fs::copy_file(ConverterGoldens() / "inputs" / source, folder_.path() / target);
  }
  void ExpectRefused(const std::string& file, const std::string& why) const {
    EXPECT_THAT([this] { ChatTokenizer::Open(folder_.path()); },
                ThrowsMessage<UserError>(
                    AllOf(HasSubstr(file), HasSubstr(why), HasSubstr("save_pretrained"))));
  }

  TestFolder folder_;
};

TEST_F(ConvertedTokenizerTest, TokensEqualTheReference) {
  const Json goldens = ParseOrderedJson(ReadWhole(ConverterGoldens() / "goldens.json"));
  ASSERT_GE(goldens.at("cases").size(), 22U);
  for (const Json& golden : goldens.at("cases")) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    const TestFolder folder;
    MakeFolder(golden, folder);
    const ChatTokenizer model = ChatTokenizer::Open(folder.path());
    // Nothing is converted where there is a tokenizer.json.
    const bool converted = !golden.at("files").empty();
    EXPECT_THAT(model.note(), HasSubstr(converted ? golden.at("files").begin().key() : ""));
    const Tokenizer& tokenizer = model.tokenizer();
    Json added = Json::array();
    for (const AddedToken& token : tokenizer.added_tokens()) {
      added.push_back({{"id", token.id}, {"content", token.text}, {"special", token.special}});
    }
    EXPECT_EQ(added, golden.at("added_tokens"));
    EXPECT_EQ(tokenizer.prefix(), golden.at("prefix").get<std::vector<int32_t>>());
    EXPECT_EQ(tokenizer.suffix(), golden.at("suffix").get<std::vector<int32_t>>());
    EXPECT_EQ(model.adds_bos(), !golden.at("prefix").empty());
    ASSERT_GE(golden.at("encodings").size(), 70U);
    for (const Json& encoding : golden.at("encodings")) {
      const auto text = encoding.at("text").get<std::string>();
      EXPECT_EQ(tokenizer.Encode(text).ids, encoding.at("ids").get<std::vector<int32_t>>()) << text;
    }
    const std::vector<int32_t> fox = tokenizer.Encode("fox").ids;
    EXPECT_EQ(tokenizer.Decode(fox, /*skip_special=*/false),
              golden.at("decoded").get<std::string>());
  }
}

TEST_F(ConvertedTokenizerTest, AConversionIsTheSameEachTimeAndReadAgain) {
  Copy("bpe.model", "tokenizer.model");
  folder_.Write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  const std::string json = ReadTokenizer(TextFiles(folder_.path())).json;
  EXPECT_EQ(json, ReadTokenizer(TextFiles(folder_.path())).json);
  const ChatTokenizer made = ChatTokenizer::Open(folder_.path());
  folder_.Write("tokenizer.json", json);
  const ChatTokenizer read = ChatTokenizer::Open(folder_.path());
  EXPECT_EQ(read.note(), "");
  EXPECT_EQ(read.digest(), made.digest());
}

TEST_F(ConvertedTokenizerTest, TheClassGivesTheEndTokenThatNoFileNames) {
  Copy("vocab.json", "vocab.json");
  Copy("merges.txt", "merges.txt");
  folder_.Write("config.json", R"({"model_type": "gpt2"})");
  folder_.Write(
      "tokenizer_config.json",
      R"({"chat_template": "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"})");
  const ChatTokenizer tokenizer = ChatTokenizer::Open(folder_.path());
  EXPECT_EQ(tokenizer.eos_id(), 0);
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "a"}};
  EXPECT_EQ(tokenizer.EncodePrompt(messages).back(), 0);
  folder_.Write("tokenizer_config.json", R"({"eos_token": null})");
  EXPECT_EQ(ChatTokenizer::Open(folder_.path()).eos_id(), std::nullopt);
}

TEST_F(ConvertedTokenizerTest, MergesWithoutAKnownSplitAreRefused) {
  Copy("vocab.json", "vocab.json");
  folder_.Write("config.json", R"({"model_type": "granite", "tokenizer_class": "GPT2Tokenizer"})");
  ExpectRefused("has no tokenizer", "vocab.json with merges.txt");
  Copy("merges.txt", "merges.txt");
  ExpectRefused("vocab.json", "how a text is split");
  folder_.Write("config.json", R"({"model_type": "gpt2"})");
  folder_.Write("merges.txt", "#version: 0.2\na b\nc\n");
  ExpectRefused("vocab.json", "merges.txt: line 3 is not two tokens");
  folder_.Write("vocab.json", "[]");
  folder_.Write("merges.txt", "a b\n");
  ExpectRefused("vocab.json", "not a JSON object");
}

TEST_F(ConvertedTokenizerTest, OtherModelFilesAreRefused) {
  Copy("bpe.model", "tokenizer.model");
  folder_.Write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  ExpectRefused("tokenizer.model", "tokenizer_class is T5Tokenizer");
  const std::string whole = ReadWhole(folder_.path() / "tokenizer.model");
  folder_.Write("tokenizer.model", whole.substr(0, whole.size() / 2));
  ExpectRefused("tokenizer.model", "cut short");
  folder_.Write("tokenizer.model", "version https://git-lfs.github.com/spec/v1\n");
  ExpectRefused("tokenizer.model", "git lfs pull");
  folder_.Write("tokenizer.model", "\n");
  ExpectRefused("tokenizer.model", "cut short");
  fs::remove(folder_.path() / "tokenizer.model");
  Copy("unigram.model", "tokenizer.model");
  folder_.Write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  ExpectRefused("tokenizer.model", "Unigram");
  fs::remove(folder_.path() / "tokenizer.model");
  Copy("ranks.tiktoken", "tokenizer.model");
  folder_.Write("config.json", R"({"model_type": "granite"})");
  ExpectRefused("tokenizer.model", "how models of this type split texts");
  folder_.Write("config.json", R"({"model_type": "llama"})");
  folder_.Write("tokenizer.model", "YQ== 0\nnothing\n");
  ExpectRefused("tokenizer.model", "line 2");
  folder_.Write("tekken.json", R"({"config": {"pattern": "a"}, "vocab": []})");
  ExpectRefused("tekken.json", "special_tokens is missing");
}

TEST_F(ConvertedTokenizerTest, ATokenizerFileComesFirst) {
  Copy("bpe.model", "tokenizer.model");
  fs::copy_file(DataGoldens() / "tokenizer.json", folder_.path() / "tokenizer.json");
  EXPECT_EQ(ChatTokenizer::Open(folder_.path()).note(), "");
}

}  // namespace
}  // namespace sft::engine
