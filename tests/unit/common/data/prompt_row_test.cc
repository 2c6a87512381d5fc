#include "common/data/prompt_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/io/file.h"

namespace sft::data {
namespace {

using ::testing::HasSubstr;

TEST(PromptRowTest, MessagesAreAConversationAndTextIsContinued) {
  const auto talk = ReadPromptRow(
      R"({"id":7,"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]})");
  ASSERT_TRUE(talk.ok()) << talk.status();
  ASSERT_EQ(talk->messages.size(), 2u);
  EXPECT_EQ(talk->messages[1].role, "user");
  EXPECT_EQ(talk->Asked(), "u");
  EXPECT_EQ(talk->members["id"], 7);
  const auto text = ReadPromptRow(R"({"prompt":"Once upon"})");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE(text->messages.empty());
  EXPECT_EQ(text->Asked(), "Once upon");
  const auto listed = ReadPromptRow(R"({"prompt":[{"role":"user","content":"u"}]})");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_EQ(listed->messages.size(), 1u);
}

TEST(PromptRowTest, AnAnswerAtTheEndIsLeftOut) {
  const auto row = ReadPromptRow(
      R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]})");
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->messages.size(), 1u);
  EXPECT_EQ(row->members["messages"].size(), 2u) << "the row is written as it was";
}

struct BadRow {
  const char* row;
  const char* problem;
};

TEST(PromptRowTest, BadRowsSayWhatIsWrong) {
  for (const BadRow& bad : {
           BadRow{"{\"prompt\":", "not JSON"},
           {"[1]", "a JSON array, not an object"},
           {R"({"prompt":"a","prompt":"b"})", "prompt"},
           {"{\"prompt\":\"\xff\"}", "not JSON"},
           {R"({"text":"a"})", "neither \"messages\" nor \"prompt\""},
           {R"({"prompt":""})", "\"prompt\" is empty"},
           {R"({"prompt":3})", "\"prompt\" is no list of messages"},
           {R"({"messages":[]})", "\"messages\" is no list of messages"},
           {R"({"messages":[{"role":"user"}]})", "message 0 has no text as its \"content\""},
           {R"({"messages":[{"role":"assistant","content":"a"}]})", "nothing but an answer"},
           {R"({"messages":[{"role":"user","content":"a","tool_calls":[]}]})", "tool_calls"},
           {R"({"prompt":"a","answer":"b"})", "\"answer\" is what the answer adds"},
           {R"({"prompt":"a","error":"b"})", "\"error\" is what the answer adds"},
           {R"({"prompt":"a","tools":[]})", "prompts cannot have \"tools\""},
       }) {
    const absl::Status status = ReadPromptRow(bad.row).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad.row << ": " << status;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(bad.problem)) << bad.row;
  }
}

class PromptFileTest : public testing::Test {
 protected:
  PromptFileTest() { dir_ = *io::MakeTempDir("prompts"); }
  ~PromptFileTest() override { EXPECT_TRUE(io::RemoveAll(dir_).ok()); }
  std::string Write(const std::string& name, std::string_view text) const {
    EXPECT_TRUE(io::WriteFileAtomic(dir_ + "/" + name, text).ok());
    return dir_ + "/" + name;
  }
  std::string dir_;
};

TEST_F(PromptFileTest, RowsKeepTheirLinesAndBlankLinesAreNone) {
  const std::string path = Write("p.jsonl", "{\"prompt\":\"a\"}\n\n{\"prompt\":\"b\"}\n");
  const auto rows = ReadPromptRows(path, path, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[1].line, 3);
  EXPECT_EQ(*CountPromptRows(path, path, 0), 2);
  EXPECT_EQ(*CountPromptRows(path, path, 1), 1);
}

TEST_F(PromptFileTest, TablesArePromptsByTheirColumn) {
  const std::string path = Write("p.csv", "id,prompt\n1,What is it?\n2,\"Two\nlines\"\n");
  const auto rows = ReadPromptRows(path, path, 0);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[1].text, "Two\nlines");
}

TEST_F(PromptFileTest, ABadRowIsNamedByItsLineAndOneThatIsNotTakenDoesNotMatter) {
  const std::string path = Write("p.jsonl", "{\"prompt\":\"a\"}\n{\"prompt\":\"\"}\n");
  EXPECT_THAT(std::string(Message(CountPromptRows(path, path, 0).status())),
              HasSubstr("line 2: \"prompt\" is empty"));
  EXPECT_EQ(*CountPromptRows(path, path, 1), 1);
  const std::string empty = Write("e.jsonl", "\n");
  EXPECT_FALSE(CountPromptRows(empty, empty, 0).ok());
}

}  // namespace
}  // namespace sft::data
