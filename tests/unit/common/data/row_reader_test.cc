#include "common/data/row_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "common/io/file.h"

namespace sft::data {
namespace {

// The rows as "line:text" joined by '|', or the error.
std::string Rows(std::string_view name, std::string_view text, const RowNames& names = {}) {
  const std::string dir = io::MakeTempDir("rows-test").value();
  EXPECT_TRUE(io::WriteFileAtomic(dir + "/rows", text).ok());
  std::string found;
  const absl::Status status =
      ReadRows(dir + "/rows", name, {.names = &names, .max_row_bytes = 3 << 20},
               [&](int64_t line, std::string_view row) -> absl::StatusOr<bool> {
                 found += fmt::format("{}{}:{}", found.empty() ? "" : "|", line, row);
                 return true;
               });
  EXPECT_TRUE(io::RemoveAll(dir).ok());
  return status.ok() ? found : "error: " + std::string(Message(status));
}

std::string Repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST(RowReaderTest, JsonLinesKeepTheirLines) {
  EXPECT_EQ(Rows("a.jsonl", "\xef\xbb\xbf{\"a\":1}\r\n\n {\"b\":2}"), "1:{\"a\":1}|3: {\"b\":2}");
  EXPECT_EQ(Rows("", "{}\n{}\n"), "1:{}|2:{}");
}

TEST(RowReaderTest, AJsonArrayIsCutIntoItsElements) {
  const std::string rows = "1:{\"a\":\"]},{\\\"\"}|3:{\"b\":[1,\n{}]}";
  EXPECT_EQ(Rows("a.json", "[{\"a\":\"]},{\\\"\"},\n\n {\"b\":[1,\n{}]}]\n"), rows);
  // Misnamed, and inside an object.
  EXPECT_EQ(Rows("a.jsonl", "\n[{\"a\":1}]"), "2:{\"a\":1}");
  EXPECT_EQ(Rows("a.json", R"({"data":[{"a":1},{"a":2}]})"), "1:{\"a\":1}|1:{\"a\":2}");
  EXPECT_EQ(Rows("a.json", "{\n\"version\": \"train\", \"x\": [[1]],\n\"rows\": [\n{\"a\":1}\n]}"),
            "4:{\"a\":1}");
  EXPECT_EQ(Rows("a.json", "[]"), "");
  // Rows that begin with such a name are rows.
  EXPECT_EQ(Rows("a.jsonl", "{\"data\":1,\"text\":\"a\"}\n"), "1:{\"data\":1,\"text\":\"a\"}");
  EXPECT_EQ(Rows("a.jsonl", "{\"data\":[1],\"text\":\"a\"}\n"), "1:{\"data\":[1],\"text\":\"a\"}");
}

TEST(RowReaderTest, JsonThatIsNotWholeIsRefusedByLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"[{},\n{}", "line 2: the file ends inside"},
      {"[{},\n,{}]", "line 2: not JSON: nothing stands"},
      {"[{},\n]", "line 2: not JSON: nothing stands"},
      {"[{}]\n[{}]", "line 2: a second JSON value"},
      {"[{}]\n]", "line 2: not JSON: ']'"},
      {"[{}}", "line 1: not JSON: '}'"},
      {"[{}]\nx", "line 2: not JSON: 'x'"},
      {"{\n\"text\": \"a\"\n}\n", "holds no list of rows"},
      {"{\n\"text\": \"a\"\n}\n{\n\"text\": \"b\"\n}", "line 4: a second JSON value"},
      {"{\"train\":[{}],\n\"data\":[{}]}", "line 2: rows as \"train\" and as \"data\""},
  };
  for (const auto& [text, problem] : cases) {
    EXPECT_NE(Rows("a.json", text).find(problem), std::string::npos)
        << text << ": " << Rows("a.json", text);
  }
  EXPECT_NE(Rows("a.json", "[{},\n\"" + std::string(4 << 20, 'x') + "\"]").find("line 2: longer"),
            std::string::npos);
  // Long keys and texts beside the list are passed over.
  const std::string text(1 << 20, 'x');
  EXPECT_EQ(Rows("a.json", "{\n\"rows" + text + "\":[1],\"a\":\"" + text + "\",\"rows\":[{}]}"),
            "2:{}");
}

TEST(RowReaderTest, TablesBecomeObjects) {
  EXPECT_EQ(Rows("A.CSV", "prompt,completion\r\n\"a,\"\"b\"\"\nc\",7\r\n\r\nd,\n"),
            R"(2:{"prompt":"a,\"b\"\nc","completion":"7"}|5:{"prompt":"d","completion":""})");
  EXPECT_EQ(Rows("a.csv", "prompt;completion\na,b;c"), R"(2:{"prompt":"a,b","completion":"c"})");
  EXPECT_EQ(Rows("a.tsv", "a,b\ttext\n1\t2\n"), R"(2:{"a,b":"1","text":"2"})");
  EXPECT_EQ(Rows("a.csv", "text\nonly"), R"(2:{"text":"only"})");
  // The numbers that pandas puts before rows, lists in cells, and cells that are none.
  EXPECT_EQ(Rows("a.csv", ",messages,system,text\n0,\"[{\"\"role\"\":\"\"user\"\"}]\",,[1]\n"),
            R"(2:{"messages":[{"role":"user"}],"text":"[1]"})");
  EXPECT_EQ(Rows("a.csv", "chat\n\"[1]\"\n", {.columns = {{"chat", "messages"}}, .roles = {}}),
            R"(2:{"chat":[1]})");
  EXPECT_EQ(Rows("a.csv", "a,b"), "");
}

TEST(RowReaderTest, TablesThatAreNotWholeAreRefusedByLine) {
  const std::pair<std::string, const char*> cases[] = {
      {"a,b\n1,2\n3\n", "line 3: 1 field, but the header has 2"},
      {"a,b\n1,2,3\n", "line 2: 3 fields"},
      {"a,a\n", "the header has \"a\" twice"},
      {"a,b\n\n1,\"x\n", "line 3: a quoted field"},
      {"a,b\n\"x\"y,2\n", "line 2: text follows the closing quote"},
      {"a,b\n1,\xff\n", "line 2: not UTF-8"},
      {"a,b\n1," + std::string(4 << 20, 'x'), "line 2: longer than"},
      {"a,b\n1,\"" + std::string(4 << 20, '"'), "line 2: longer than"},
      {"a,b\n" + std::string(4 << 20, ','), "line 2: more than 1000 columns"},
      {std::string(1000, ',') + "\n", "line 1: more than 1000 columns"},
      {std::string(1 << 20, 'a') + ",b\n" + Repeated("1,2\n", 200), "times as long as the file"},
  };
  for (const auto& [text, problem] : cases) {
    EXPECT_NE(Rows("a.csv", text).find(problem), std::string::npos) << Rows("a.csv", text);
  }
}

TEST(RowReaderTest, ATextFileIsOneDocument) {
  EXPECT_EQ(Rows("a.txt", "\xef\xbb\xbfone\n\ntwo \"\n"), R"(1:{"text":"one\n\ntwo \"\n"})");
  EXPECT_EQ(Rows("a.md.zst", "[1]"), R"(1:{"text":"[1]"})");
  EXPECT_EQ(Rows("a.txt", " \n"), "");
  EXPECT_NE(Rows("a.txt.gz", "\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n")
                .find("give it the ending .jsonl"),
            std::string::npos);
  EXPECT_EQ(Rows("a.md", "{}\n"), R"(1:{"text":"{}\n"})");
  EXPECT_EQ(Rows("a.txt", "{x}\n"), R"(1:{"text":"{x}\n"})");
  EXPECT_NE(Rows("a.txt", "a\nb\xff").find("line 2: not UTF-8"), std::string::npos);
  EXPECT_NE(Rows("a.txt", std::string(4 << 20, 'x')).find("more than 3 MiB"), std::string::npos);
}

TEST(RowReaderTest, FilesOfOtherKindsAreNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {std::string("\xff\xfe{\0}\0", 6), "UTF-16"},
      {"PAR1....", "a Parquet file that is cut short"},
      {std::string("ARROW1\0\0", 8), "an Arrow file that is cut short"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"},
      {std::string("PK\x03\x04....", 8), "an archive"},
  };
  for (const auto& [text, problem] : cases) {
    EXPECT_NE(Rows("a.jsonl", text).find(problem), std::string::npos) << problem;
  }
}

TEST(RowReaderTest, ParquetIsToldByItsFirstBytes) {
  const std::string path =
      std::string(SFT_SOURCE_DIR) + "/tests/unit/common/columnar/files/packed_zstd.parquet";
  const std::string whole = io::ReadFile(path).value();
  for (const char* name : {"a.parquet", "a.jsonl", ""}) {
    const std::string rows = Rows(name, whole);
    EXPECT_TRUE(rows.starts_with("1:{\"text\":\"0 0 ")) << rows.substr(0, 200);
    EXPECT_EQ(std::ranges::count(rows, '|'), 39);
  }
  const std::pair<std::string, const char*> cases[] = {
      {whole.substr(0, 100), "is cut short"},
      {"{\"text\": \"a\"}\n", "not a Parquet file, though its name says so"},
      {"", "not a Parquet file, though its name says so"},
      {"PARE" + whole, "is encrypted"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"},
  };
  for (const auto& [bytes, problem] : cases) {
    EXPECT_NE(Rows("a.parquet", bytes).find(problem), std::string::npos)
        << Rows("a.parquet", bytes);
  }
}

TEST(RowReaderTest, WhoHasEnoughEndsTheReading) {
  const std::string dir = io::MakeTempDir("rows-test").value();
  const std::pair<const char*, const char*> files[] = {
      {"a.jsonl", "{}\n{}\n{}broken"}, {"a.json", "[{},{},"}, {"a.csv", "a\n1\n2\n\"3"}};
  for (const auto& [name, text] : files) {
    ASSERT_TRUE(io::WriteFileAtomic(dir + "/rows", text).ok());
    int rows = 0;
    const absl::Status status =
        ReadRows(dir + "/rows", name, {},
                 [&](int64_t, std::string_view) -> absl::StatusOr<bool> { return ++rows < 2; });
    EXPECT_TRUE(status.ok()) << name << status;
    EXPECT_EQ(rows, 2) << name;
  }
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

}  // namespace
}  // namespace sft::data
