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
      {R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "wrong form: a preference pair"},
      {R"({"prompt": "a", "completion": "b", "label": true})", "wrong form: an answer with a mark"},
      {R"({"input_ids": [1], "labels": [1]})", "wrong form: \"input_ids\""},
      {R"({"text": "<image> a", "images": ["a.png"]})", "only text can be trained"},
      {R"({"conversations": [{"from": "human", "value": "a"}]})",
       "no answer: no assistant message"},
      {R"({"conversations": [{"from": "customer", "value": "a"}, {"from": "gpt", "value": "b"}]})",
       "has the role \"customer\""},
      {R"({"conversations": [{"from": "function_call", "value": "f 1"}]})", "is a function call"},
      {R"({"conversations": [{"from": "system", "value": "a"}, {"from": "gpt", "value": "b"}],
           "system": "c"})",
       "begins with a system message"},
      {R"({"instruction": "a", "output": "b", "history": [["q"]]})", "wrong form: history has"},
      {R"({"instruction": "a", "input": 1, "output": "b"})", "input is a JSON number"},
      {R"({"messages": [{"role": "assistant", "content": "a", "train": 1}]})", "train is 1"},
      {R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [],
           "function_call": {}}]})",
       "write it as tool_calls"},
      {R"({"messages": [{"role": "assistant", "content": "a"}], "tools": "{"})",
       "tools is not a list"},
      {R"({"text": 3})", "wrong form: text is a JSON number"},
      {R"({"text": ""})", "no answer: the text is empty"},
      {R"({"prompt": "a"})", "no answer: a prompt without a completion"},
      {R"({"prompt": "a", "completion": "b", "system": "c"})", "\"system\" beside a prompt"},
      {R"({"instruction": "a", "output": ""})", "no answer: the output is empty"},
      {R"({"question": "a", "answer": ""})", "no answer: the answer is empty"},
      {R"({"conversations": [{"from": "gpt", "value": "b", "train_detail": []}]})",
       "messages[0].train_detail is not read"},
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
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
           {"role": "user", "content": "c"}]})",
       "no answer: the conversation ends with a message of the user"},
      {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
           {"from": "human", "value": "c"}]})",
       "no answer: the conversation ends with a message of the user"},
      {R"({"prompt": [{"role": "user", "content": "a"}], "completion": [
           {"role": "assistant", "content": "b"}, {"role": "system", "content": "c"}]})",
       "no answer: the conversation ends with a message of the system"},
      {R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]})",
       "no answer: the answer messages[1] is empty"},
      {R"({"messages": [{"role": "assistant", "content": null, "tool_calls": []}]})",
       "no answer: the answer messages[0] is empty"},
      {R"({"messages": [{"role": "assistant", "content": [], "thinking": ""}]})",
       "no answer: the answer messages[0] is empty"},
      {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": ""}]})",
       "no answer: the answer messages[1] is empty"},
      {R"({"instruction": "a", "output": "b", "history": [["q", ""]]})",
       "no answer: the answer messages[1] is empty"},
      {R"({"prompt": [{"role": "user", "content": "a"}], "completion": [
           {"role": "assistant", "content": ""}]})",
       "no answer: the answer completion[0] is empty"},
      {R"({"text": "a", "score": NaN})", "not JSON: column"},
      {R"({"text": "a", "score": Infinity})", "not JSON: column"},
      {R"({"text": "a", "score": -Infinity})", "not JSON: column"},
      {R"({"text": "a", "score": 1e999})", "not JSON"},
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

TEST(RowTest, ReasoningAndCallsThatAreNullAreNotThere) {
  const Row row = ParseRow(R"({"messages": [{"role": "developer", "content": "d"},
      {"role": "user", "content": "q", "thinking": null},
      {"role": "assistant", "content": "c", "thinking": null, "reasoning_content": "r",
       "tool_calls": null}]})");
  const auto& messages = std::get<ConversationRow>(row).messages;
  EXPECT_FALSE(messages[1].contains("thinking"));
  EXPECT_EQ(messages[2].at("thinking"), "r");
  EXPECT_FALSE(messages[2].contains("tool_calls"));
  EXPECT_EQ(messages[0].at("role"), "developer");
}

TEST(RowTest, WhatIsNotLearntMayBeEmptyAndAToolsResultMayBeLast) {
  for (const char* line :
       {R"({"messages": [{"role": "assistant", "content": "", "weight": 0},
            {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
        R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""},
            {"role": "user", "content": "b"}], "completion": [{"role": "assistant",
            "content": "c"}]})",
        R"({"messages": [{"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "thinking": "t"}]})",
        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
            {"role": "tool", "content": "7"}]})"}) {
    EXPECT_EQ(Refusal(line), "accepted") << line;
  }
}

TEST(RowTest, ToolArgumentsWrittenAsJsonTextBecomeObjects) {
  const Row row = ParseRow(R"({"messages": [{"role": "assistant", "tool_calls": [
      {"function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]}], "tools": [{"x": 1}]})");
  const auto& conversation = std::get<ConversationRow>(row);
  EXPECT_EQ(DumpJson(conversation.messages[0]["tool_calls"][0]["function"]["arguments"]),
            R"({"z":1,"a":2})");
  EXPECT_EQ(conversation.tools.size(), 1U);
}

// The conversation as the template gets it.
std::string Read(std::string_view line, const data::RowNames& names = {}) {
  const Row row = ParseRow(line, names);
  const auto& conversation = std::get<ConversationRow>(row);
  std::string trained;
  for (const bool turn : conversation.trained) trained += turn ? '+' : '-';
  return DumpJson(conversation.messages) + trained;
}

TEST(RowTest, OtherFormsBecomeTheSameConversation) {
  const std::string expected =
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"2+2?"},)"
      R"({"role":"assistant","content":"4"}]--+)";
  const char* const rows[] = {
      R"({"conversations":[{"from":"human","value":"2+2?"},{"from":"gpt","value":"4"}],
          "system":"Be brief."})",
      R"({"conversation":[{"from":"system","value":"Be brief."},{"from":"user","value":"2+2?"},
          {"from":"bard","value":"4"}]})",
      R"({"conversations":[{"role":"system","content":"Be brief."},
          {"role":"human","content":"2+2?"},{"role":"model","content":"4"}]})",
      R"({"conversations":[{"role":"system","value":"Be brief."},
          {"role":"user","value":"2+2?"},{"role":"assistant","content":"4"}]})",
      R"({"messages":[{"from":"system","value":"Be brief."},{"from":"human","value":"2+2?"},
          {"from":"chatgpt","value":"4"}]})",
      R"({"instruction":"2+2?","input":"","output":"4","system":"Be brief."})",
      R"({"instruction":"2+2?","input":null,"response":"4","system":"Be brief.","history":[]})",
      R"({"INSTRUCTION":"2+2?","RESPONSE":"4","system":"Be brief."})",
      R"({"question":"2+2?","answer":"4","system":"Be brief."})",
      R"({"query":"2+2?","response":"4","system":"Be brief."})",
  };
  for (const char* row : rows) EXPECT_EQ(Read(row), expected) << row;
}

TEST(RowTest, HistoryInputAndCallsAreTurns) {
  EXPECT_EQ(Read(R"({"instruction":"Add","input":"2 2","output":"4","history":[["q","a"]],
                     "system":""})"),
            R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"},)"
            R"({"role":"user","content":"Add\n2 2"},{"role":"assistant","content":"4"}]-+-+)");
  EXPECT_EQ(Read(R"({"conversations":[{"from":"human","value":"a"},
      {"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"z\":1}}"},
      {"from":"observation","value":"7"},{"from":"gpt","value":"b","train":false}]})"),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":)"
            R"([{"type":"function","function":{"name":"f","arguments":{"z":1}}}]},)"
            R"({"role":"tool","content":"7"},{"role":"assistant","content":"b"}]-+--)");
}

TEST(RowTest, AlpacaRowsBecomeStanfordsTextWhereTheJobSaysSo) {
  data::RowNames names;
  names.stanford = true;
  const auto read = [&](std::string_view line) {
    return std::get<CompletionRow>(ParseRow(line, names));
  };
  const CompletionRow with = read(R"({"instruction":"Add","input":"2 2","output":"4"})");
  EXPECT_EQ(with.prompt,
            "Below is an instruction that describes a task, paired with an input that provides "
            "further context. Write a response that appropriately completes the request.\n\n"
            "### Instruction:\nAdd\n\n### Input:\n2 2\n\n### Response:");
  EXPECT_EQ(with.completion, "4");
  const CompletionRow without =
      read(R"({"instruction":"Hi","input":"","system":"","history":[],"response":"Hello"})");
  EXPECT_EQ(without.prompt,
            "Below is an instruction that describes a task. Write a response that appropriately "
            "completes the request.\n\n### Instruction:\nHi\n\n### Response:");
  EXPECT_EQ(without.completion, "Hello");
  for (const auto& [line, reason] :
       {std::pair(R"({"instruction":"a","output":"b","history":[["q","r"]]})",
                  "history has no place"),
        std::pair(R"({"instruction":"a","output":"b","system":"s"})", "system has no place"),
        std::pair(R"({"instruction":"a","output":""})", "the output is empty")}) {
    EXPECT_THAT([&] { ParseRow(line, names); },
                ::testing::ThrowsMessage<RowError>(HasSubstr(reason)));
  }
  // Other forms are read as ever.
  EXPECT_TRUE(
      std::holds_alternative<ConversationRow>(ParseRow(R"({"question":"a","answer":"b"})", names)));
}

TEST(RowTest, ColumnsAndRolesOfOtherNamesAreTakenAsTheJobSays) {
  const data::RowNames names =
      data::NamesOf({"messages=chat"}, {"user=customer", "assistant=agent"});
  EXPECT_EQ(Read(R"({"chat":[{"from":"customer","value":"a"},{"from":"agent","value":"b"}],
                     "messages":"the id of the chat"})",
                 names),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}]-+)");
  const Row row = ParseRow(R"({"ask":"a","reply":"b","prompt":1})",
                           data::NamesOf({"prompt=ask", "completion=reply"}, {}));
  EXPECT_EQ(std::get<CompletionRow>(row).prompt, "a");
  EXPECT_EQ(std::get<CompletionRow>(row).completion, "b");
}

TEST(RowTest, ToolsWrittenAsTextAreRead) {
  const Row row = ParseRow(R"({"messages":[{"role":"assistant","content":"a"}],
                               "tools":"[{\"x\":1}]"})");
  EXPECT_EQ(DumpJson(std::get<ConversationRow>(row).tools), R"([{"x":1}])");
  EXPECT_TRUE(std::get<ConversationRow>(
                  ParseRow(R"({"messages":[{"role":"assistant","content":"a"}],"tools":""})"))
                  .tools.is_null());
}

}  // namespace
}  // namespace sft::engine
