#include "worker/engine/data/row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/json.h"

namespace sft::engine {
namespace {

using ::testing::HasSubstr;

std::string Refusal(std::string_view line) {
  try {
    ParseRow(line);
  } catch (const RowError& error) {
    return std::string(RowProblemName(error.problem())) + ": " + error.what();
  }
  return "accepted";
}

// Keys that are compared with one another, or a list that is looked through at each end of an
// object, take hours for a row of the greatest size.
TEST(RowTest, AWideRowIsReadInTimeThatGrowsAsItsBytes) {
  std::string keys = "{\"text\":\"a\"", objects = "{\"text\":\"a\",\"x\":[{}";
  for (int i = 0; i < 400'000; ++i) keys += ",\"k" + std::to_string(i) + "\":1";
  for (int i = 0; i < 2'000'000; ++i) objects += ",{}";
  EXPECT_EQ(Refusal(keys + "}"), "accepted");
  EXPECT_EQ(Refusal(objects + "]}"), "accepted");
}

TEST(RowTest, BadRowsSayWhatIsWrongWithThem) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\": ", "not JSON: column"},
      {"[1]", "not JSON: a JSON array, not an object"},
      {"\"x\"", "not JSON: a JSON string"},
      {"{\"text\": \"\xff\"}", "not JSON"},
      {"{}", "wrong form: no \"messages\""},
      {R"({"text": 3})", "wrong form: text is a JSON number"},
      {R"({"text": ""})", "no answer: the text is empty"},
      {R"({"prompt": "a"})", "no answer: a prompt without a completion"},
      {R"({"prompt": "a", "completion": ""})", "no answer: the completion is empty"},
      {R"({"messages": {}})", "wrong form: messages is not a list"},
      {R"({"messages": []})", "no answer: the conversation has no messages"},
      {R"({"messages": [3]})", "wrong form: messages[0] is not an object"},
      {R"({"messages": [{"content": "a"}]})", "wrong form: messages[0] has no role"},
      {R"({"messages": [{"role": "bot", "content": "a"}]})",
       "has the role \"bot\"; roles are system"},
      {R"({"messages": [{"role": "user"}]})", "wrong form: messages[0] has no content"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content is a JSON number"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
       "only text can be trained"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "no answer: no assistant message"},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": 2}]})", "weight is 2"},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": 0}]})", "no answer"},
      {R"({"messages": [{"role": "assistant", "content": "a", "thinking": 1}]})",
       "thinking is not a string"},
      {R"({"messages": [{"role": "assistant", "content": "a"}], "tools": {}})",
       "tools is not a list"},
  };
  for (const auto& [line, reason] : cases) EXPECT_THAT(Refusal(line), HasSubstr(reason)) << line;
}

TEST(RowTest, ARowNestedTooDeepIsRefusedBeforeItExhaustsTheStack) {
  const std::string line =
      "{\"text\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(Refusal(line), HasSubstr("nested more than"));
}

TEST(RowTest, TextPartsAreJoinedAndReasoningHasBothNames) {
  const Row row = ParseRow(R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "thinking": "t"}]})");
  const auto& conversation = std::get<ConversationRow>(row);
  EXPECT_EQ(conversation.messages[0].at("content"), "ab");
  EXPECT_EQ(conversation.messages[1].at("reasoning_content"), "t");
  EXPECT_EQ(conversation.trained, (std::vector<bool>{false, true}));
}

TEST(RowTest, ToolArgumentsWrittenAsJsonTextBecomeObjects) {
  const Row row = ParseRow(R"({"messages": [{"role": "assistant", "tool_calls": [
      {"function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]}], "tools": [{"x": 1}]})");
  const auto& conversation = std::get<ConversationRow>(row);
  EXPECT_EQ(DumpJson(conversation.messages[0]["tool_calls"][0]["function"]["arguments"]),
            R"({"z":1,"a":2})");
  EXPECT_EQ(conversation.tools.size(), 1U);
}

}  // namespace
}  // namespace sft::engine
