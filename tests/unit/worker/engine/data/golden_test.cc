// The engine against transformers and tokenizers (tests/parity/data/make_goldens.py).

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/data/chat_template.h"
#include "worker/engine/data/tokenizer.h"

namespace sft::engine {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace
}  // namespace sft::engine
