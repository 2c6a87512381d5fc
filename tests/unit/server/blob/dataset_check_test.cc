#include "server/blob/dataset_check.h"

#include <gtest/gtest.h>

#include "common/io/file.h"

namespace sft::server {
namespace {

absl::StatusOr<int64_t> Check(const std::string& text) {
  const std::string dir = io::MakeTempDir("dataset-test").value();
  EXPECT_TRUE(io::WriteFileAtomic(dir + "/rows", text).ok());
  auto rows = CheckDataset(dir + "/rows");
  EXPECT_TRUE(io::RemoveAll(dir).ok());
  return rows;
}

TEST(DatasetCheckTest, CountsRowsOfTheThreeForms) {
  EXPECT_EQ(Check(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}
{"prompt":"a","completion":"b"}

{"text":"a"})").value(),
            3);
}

TEST(DatasetCheckTest, AcceptsToolCallsWithoutContentAndLineEndsOfWindows) {
  EXPECT_EQ(Check("{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[]}]}\r\n").value(), 1);
}

TEST(DatasetCheckTest, NamesTheLineAndWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\":\"a\"}\nnot json\n", "line 2: not JSON"},
      {"[1]\n", "line 1: a JSON array"},
      {"{\"text\":\"a\"}\n\n{\"texts\":\"a\"}\n", "line 3: none of the row forms"},
      {"{\"prompt\":\"a\"}\n", "line 1: \"prompt\" and \"completion\""},
      {"{\"messages\":[]}\n", "line 1: \"messages\""},
      {"{\"messages\":[{\"role\":\"user\"}]}\n", "line 1: message 1"},
      {"{\"text\":\"\xff\"}\n", "line 1: not JSON"},
      {"", "empty"},
      {"\n\n", "empty"}};
  for (const auto& [text, expected] : cases) {
    const auto rows = Check(text);
    ASSERT_TRUE(absl::IsInvalidArgument(rows.status())) << text;
    EXPECT_NE(Message(rows.status()).find(expected), std::string_view::npos) << rows.status();
  }
}

TEST(DatasetCheckTest, ARowLongerThanTheLimitIsRefusedWithoutBeingKept) {
  const auto rows = Check("{\"text\":\"" + std::string(kMaxRowBytes + (1 << 20), 'x'));
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(Message(rows.status()).find("line 1: longer than 16 MiB"), std::string_view::npos);
}

}  // namespace
}  // namespace sft::server
