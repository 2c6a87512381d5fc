// The engine against transformers and tokenizers (tests/parity/data/make_goldens.py).

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <span>

#include "common/base/json.h"
#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/data/chat_template.h"
#include "worker/engine/data/encode_row.h"
#include "worker/engine/data/tokenizer.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;

// The day on which the goldens say they were rendered.
constexpr char kDay[] = "2024-07-26";

const Json& Goldens() {
  static const Json goldens = ParseOrderedJson(ReadWhole(DataGoldens() / "goldens.json"));
  return goldens;
}

TEST(GoldenTest, TokensAndByteOffsetsEqualTheReference) {
  const Tokenizer tokenizer = Tokenizer::Open(DataGoldens() / "tokenizer.json");
  ASSERT_GE(Goldens().at("encodings").size(), 300U);
  for (const Json& golden : Goldens().at("encodings")) {
    const auto text = golden.at("text").get<std::string>();
    const Encoding encoding = tokenizer.Encode(text);
    EXPECT_EQ(encoding.ids, golden.at("ids").get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(encoding.starts, golden.at("starts").get<std::vector<uint32_t>>()) << text;
    EXPECT_EQ(encoding.ends, golden.at("ends").get<std::vector<uint32_t>>()) << text;
  }
}

TEST(GoldenTest, RenderedTemplatesEqualTheReferenceByteForByte) {
  TemplateVariables variables;
  variables.bos_token = Goldens().at("specials").at("bos_token").get<std::string>();
  variables.eos_token = Goldens().at("specials").at("eos_token").get<std::string>();
  variables.date = kDay;
  ASSERT_GE(Goldens().at("renders").size(), 60U);
  for (const Json& golden : Goldens().at("renders")) {
    const auto name = golden.at("template").get<std::string>();
    const std::string where = name + " " + golden.at("case").get<std::string>();
    const ChatTemplate chat_template =
        ChatTemplate::Compile(ReadWhole(DataGoldens() / "templates" / name), name, variables);
    const std::string messages = DumpJson(golden.at("messages"));
    const std::string tools = golden.at("tools").is_null() ? "" : DumpJson(golden.at("tools"));
    const RenderedText rendered = chat_template.Render(
        {.messages_json = messages,
         .tools_json = tools,
         .add_generation_prompt = golden.at("add_generation_prompt").get<bool>()});
    EXPECT_EQ(rendered.text, golden.at("text").get<std::string>()) << where;
    std::vector<TextSpan> expected;
    for (const Json& span : golden.at("generation")) expected.push_back({span.at(0), span.at(1)});
    EXPECT_EQ(rendered.generation, expected) << where;
  }
}

// A template that ends its last answer by another token than the others, and drops reasoning.
TEST(GoldenTest, WhatIsLearntOfAConversationWithChannelsEqualsTheRules) {
  const ModelFolder folder("channels", "<s>", "<|return|>");
  folder.AddSpecialTokens({"<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|end|>",
                           "<|return|>", "<|call|>"});
  ASSERT_GE(Goldens().at("masks").size(), 20U);
  for (const Json& golden : Goldens().at("masks")) {
    const auto name = golden.at("case").get<std::string>();
    const Json& arguments = golden.at("arguments");
    const ChatTokenizer tokenizer = ChatTokenizer::Open(
        folder.path(), {},
        {.day = kDay, .arguments = arguments.empty() ? "" : DumpJson(arguments)});
    const RowEncoder encoder(tokenizer, spec::LossOn::kAssistant);
    const EncodedRow row = encoder.Encode(ParseRow(DumpJson(golden.at("row"))));
    const auto decode = [&tokenizer](std::span<const int32_t> ids) {
      return tokenizer.tokenizer().Decode(ids, /*skip_special=*/false);
    };
    EXPECT_EQ(decode(row.tokens), golden.at("text").get<std::string>()) << name;
    std::vector<std::string> learnt;
    for (size_t i = 0, first = 0; i <= row.tokens.size(); ++i) {
      if (i < row.tokens.size() && row.loss[i] != 0) continue;
      if (first < i) learnt.push_back(decode(std::span(row.tokens).subspan(first, i - first)));
      first = i + 1;
    }
    EXPECT_EQ(learnt, golden.at("learnt").get<std::vector<std::string>>()) << name;
  }
}

}  // namespace
}  // namespace sft::engine
