#include "common/data/dataset_check.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "common/io/file.h"

namespace sft::data {
namespace {

absl::StatusOr<DatasetCheck> Check(const std::string& text, std::string_view name = "") {
  const std::string dir = io::MakeTempDir("dataset-test").value();
  EXPECT_TRUE(io::WriteFileAtomic(dir + "/rows", text).ok());
  auto rows = CheckDataset(dir + "/rows", name);
  EXPECT_TRUE(io::RemoveAll(dir).ok());
  return rows;
}

TEST(DatasetCheckTest, CountsRowsOfTheThreeForms) {
  EXPECT_EQ(Check(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}
{"prompt":"a","completion":"b"}

{"text":"a"})")
                ->rows,
            3);
}

TEST(DatasetCheckTest, AcceptsToolCallsWithoutContentAndLineEndsOfWindows) {
  EXPECT_EQ(Check("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[]}]}\r\n")->rows, 1);
}

TEST(DatasetCheckTest, NamesTheLineAndWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\":\"a\"}\nnot json\n", "line 2: not JSON"},
      {"[1]\n", "line 1: a JSON number"},
      {"[{\"text\":\"a\"},\n[]]\n", "line 2: a JSON array"},
      {"{\"text\":\"a\"}\n[]\n", "line 2: a JSON array"},
      {"{\"text\":\"\\ud83d\"}\n", "line 1: not JSON"},
      {"{\"text\":NaN}\n", "line 1: not JSON"},
      {"[]", "empty"},
      {"{\"text\":\"\xff\"}\n", "line 1: not JSON"},
      {"", "empty"},
      {"\n\n", "empty"}};
  for (const auto& [text, expected] : cases) {
    const auto rows = Check(text);
    ASSERT_TRUE(absl::IsInvalidArgument(rows.status())) << text;
    EXPECT_NE(Message(rows.status()).find(expected), std::string_view::npos) << rows.status();
  }
}

TEST(DatasetCheckTest, ObjectsOfUnknownFormAreCountedAndTheFirstIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {"{\"text\":\"a\"}\n\n{\"texts\":\"a\"}\n{}\n", "line 3: none of the row forms"},
      {"{\"text\":\"a\"}\n{\"prompt\":\"a\"}\n{}\n", "line 2: a prompt without an answer"},
      {"{\"text\":\"a\"}\n{\"prompt\":\"a\",\"completion\":null}\n{}\n",
       "line 2: \"prompt\" and \"completion\""},
      {"{\"text\":\"a\"}\n{\"messages\":[]}\n{}\n", "line 2: \"messages\""},
      {"{\"text\":\"a\"}\n{\"text\":\"a\",\"x\":" + std::string(100, '[') + std::string(100, ']') +
           "}\n{}\n",
       "line 2: nested more than 100 levels"},
      {"{\"text\":\"a\"}\n{\"messages\":[{\"role\":\"user\"}]}\n{}\n", "line 2: message 1"}};
  for (const auto& [text, expected] : cases) {
    const auto found = Check(text);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->rows, 3) << text;
    EXPECT_EQ(found->odd_rows, 2) << text;
    EXPECT_EQ(found->first_odd_row, 2) << text;
    EXPECT_EQ(found->first_odd.find(expected), 0u) << found->first_odd;
  }
}

TEST(DatasetCheckTest, FormsAreCountedOverWholeFiles) {
  const auto found = Check(R"([{"conversations":[{"from":"human","value":"a"}]}, {"text":"a"},
{"prompt":"a","chosen":"b","rejected":"c"}, {"text":"b"}])");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(FormsText(found->forms), "1 ShareGPT, 2 text, 1 preference pairs");
  EXPECT_EQ(found->odd_rows, 1);
  EXPECT_EQ(found->first_odd.find("line 2: a preference pair"), 0U) << found->first_odd;
  EXPECT_EQ(FormsText(Check("question,answer\na,b\n", "a.csv")->forms), "1 question + answer");
}

TEST(DatasetCheckTest, PromptAndCompletionMayBothBeMessages) {
  EXPECT_EQ(Check("{\"prompt\":[{}],\"completion\":[{}]}\n")->odd_rows, 0);
}

TEST(DatasetCheckTest, ADuplicateKeyKeepsItsLastValue) {
  EXPECT_EQ(Check(R"({"messages":[1],"messages":[{"role":"user","content":"a"}]})")->odd_rows, 0);
  EXPECT_EQ(Check(R"({"messages":[{"role":"user","content":"a"}],"messages":[]})")->odd_rows, 1);
  EXPECT_EQ(Check(R"({"text":1,"text":"a"})")->odd_rows, 0);
}

TEST(DatasetCheckTest, OnlyKeysOfTheRowAndItsMessagesCount) {
  for (const char* row :
       {R"({"a":{"text":"b"}})", R"({"messages":[[{"role":"user","content":"a"}]]})",
        R"({"messages":[{"a":{"role":"user","content":"b"}}]})",
        R"({"messages":[{"role":"user","content":{"text":"a"}}]})",
        R"({"messages":[{"role":"user","content":"a"},2]})", R"({"messages":{"role":"user"}})",
        R"({"prompt":"a","completion":[]})"}) {
    EXPECT_EQ(Check(row)->odd_rows, 1) << row;
  }
  for (const char* row :
       {R"({"messages":[{"role":"user","content":[{"role":1}],"x":{"content":2}}],"y":[[3]]})",
        R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"role":1}]}],"text":1})",
        R"({"x":[{"messages":1}],"text":"a"})"}) {
    EXPECT_EQ(Check(row)->odd_rows, 0) << row << Check(row)->first_odd;
  }
}

TEST(DatasetCheckTest, ARowOfMillionsOfValuesTakesLittleMemory) {
  constexpr int kValues = 5'000'000;
  std::string row = R"({"text":"a","list":[[])";
  row.reserve(row.size() + 3 * kValues + 4);
  for (int i = 1; i < kValues; ++i) row += ",[]";
  row += "]}\n";
  const std::string dir = io::MakeTempDir("dataset-test").value();
  ASSERT_TRUE(io::WriteFileAtomic(dir + "/rows", row).ok());
  rusage before{}, after{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &before), 0);
  const auto found = CheckDataset(dir + "/rows");
  ASSERT_EQ(getrusage(RUSAGE_SELF, &after), 0);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->odd_rows, 0);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 100 << 10) << "KiB";
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

TEST(DatasetCheckTest, ARowLongerThanTheLimitIsRefusedWithoutBeingKept) {
  const auto rows = Check("{\"text\":\"" + std::string(kMaxRowBytes + (1 << 20), 'x'));
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(Message(rows.status()).find("line 1: longer than 16 MiB"), std::string_view::npos);
}

TEST(DatasetCheckTest, AnUploadedTableIsNotOpened) {
  const std::string dir = io::MakeTempDir("dataset-test").value();
  // Damaged behind its first bytes, which nobody sees who does not open it.
  for (const std::string& magic : {std::string("PAR1"), std::string("ARROW1\0\0", 8)}) {
    ASSERT_TRUE(io::WriteFileAtomic(dir + "/rows", magic + "and nothing of a table").ok());
    EXPECT_FALSE(CheckDataset(dir + "/rows", "rows.parquet").ok());
    const auto found = CheckUpload(dir + "/rows", "rows.parquet");
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->rows, 0);
    EXPECT_EQ(ProtocolOf(*found), 2);
  }
  ASSERT_TRUE(io::WriteFileAtomic(dir + "/rows", "not json\n").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckUpload(dir + "/rows", "rows.jsonl").status()));
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

TEST(DatasetCheckTest, OldWorkersReadLinesOfTheFirstForms) {
  const auto protocol = [](FileKind kind, std::initializer_list<Form> forms) {
    DatasetCheck found{.kind = kind};
    for (const Form form : forms) {
      ++found.rows;
      ++found.forms[static_cast<size_t>(form)];
    }
    return ProtocolOf(found);
  };
  EXPECT_EQ(protocol({}, {Form::kMessages, Form::kCompletion, Form::kText}), 1);
  EXPECT_EQ(protocol({}, {Form::kMessages, Form::kShareGpt}), 2);
  EXPECT_EQ(protocol({Container::kTable}, {Form::kText}), 2);
  EXPECT_EQ(protocol({Container::kLines, /*packed=*/true}, {Form::kText}), 2);
  EXPECT_EQ(ProtocolOfName("/data/rows.jsonl"), 1);
  for (const char* name : {"/a.csv", "/a.parquet", "/a.jsonl.zst", "/a.txt"}) {
    EXPECT_EQ(ProtocolOfName(name), 2) << name;
  }
}

}  // namespace
}  // namespace sft::data
