// Files of other writers (files/make_files.py) read as the rows that they were made of, and files
// that are not whole named.

#include "common/columnar/table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/columnar/json_text.h"
#include "common/io/file.h"

namespace sft::columnar {
namespace {

std::string FilePath(std::string_view name) {
  return fmt::format("{}/tests/unit/common/columnar/files/{}", SFT_SOURCE_DIR, name);
}

// The rows, a line each, or the error.
std::string RowsOfDescriptor(int fd, const RowLimits& limits, int64_t most) {
  std::string rows;
  int64_t last = 0;
  const absl::Status status = ReadTable(
      fd, "rows", limits, [&](int64_t row, std::string_view object) -> absl::StatusOr<bool> {
        EXPECT_EQ(row, ++last);
        const nlohmann::ordered_json parsed = ParseOrderedJson(object);
        EXPECT_TRUE(parsed.is_object()) << object;
        rows += DumpJson(parsed) + "\n";
        return row < most;
      });
  if (status.ok()) return rows;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return "error: " + std::string(Message(status));
}

std::string RowsOfFile(const std::string& path,
                       const RowLimits& limits = {.max_row_bytes = 16 << 20},
                       int64_t most = INT64_MAX) {
  const io::UniqueFd fd = io::OpenForRead(path).value();
  return RowsOfDescriptor(fd.get(), limits, most);
}

std::string RowsOf(std::string_view bytes) {
  const io::UniqueFd fd(memfd_create("rows", 0));
  EXPECT_TRUE(io::WriteAll(fd.get(), bytes, "rows").ok());
  return RowsOfDescriptor(fd.get(), {.max_row_bytes = 16 << 20}, INT64_MAX);
}

std::string Expected(std::string_view name) {
  std::string rows;
  std::string text = io::ReadFile(FilePath(fmt::format("{}.jsonl", name))).value();
  for (size_t end; (end = text.find('\n')) != text.npos; text.erase(0, end + 1)) {
    rows += DumpJson(ParseOrderedJson(text.substr(0, end))) + "\n";
  }
  return rows;
}

TEST(TableTest, RowsAreThoseThatWereWritten) {
  const std::pair<const char*, const char*> files[] = {
      {"chat.parquet", "chat"},
      {"chat_v2.parquet", "chat"},
      {"packed_zstd.parquet", "packed"},
      {"packed_gzip.parquet", "packed"},
      {"packed_lz4.parquet", "packed"},
      {"packed_none.parquet", "packed"},
      {"packed_snappy.parquet", "packed"},
      {"share_gpt.parquet", "share_gpt"},
      {"types.parquet", "types"},
      {"encodings.parquet", "encodings"},
      {"overflow.parquet", "overflow"},
      {"int96.parquet", "int96"},
      {"empty.parquet", "empty"},
      {"chat_stream.arrow", "chat"},
      {"chat_stream_zstd.arrow", "chat"},
      {"chat_lz4.feather", "chat"},
      {"types.arrow", "types"},
  };
  for (const auto& [file, rows] : files)
    EXPECT_EQ(RowsOfFile(FilePath(file)), Expected(rows)) << file;
}

TEST(TableTest, ReadsNoFurtherThanAsked) {
  const std::string rows = Expected("chat");
  EXPECT_EQ(RowsOfFile(FilePath("chat.parquet"), {.max_row_bytes = 1 << 20}, 1),
            rows.substr(0, rows.find('\n') + 1));
}

TEST(TableTest, WhatIsNotReadIsNamed) {
  const std::pair<const char*, const char*> files[] = {
      {"brotli", "row group 1: column source is packed with Brotli, which is not read; write"},
      {"encrypted_columns", "is encrypted"}};
  for (const auto& [file, problem] : files) {
    const std::string found = RowsOfFile(FilePath(fmt::format("{}.parquet", file)));
    EXPECT_NE(found.find(problem), std::string::npos) << found;
  }
  EXPECT_EQ(
      RowsOfFile(FilePath("view.arrow")),
      "error: column text is of Arrow's type 24, which is not read; write the table as Parquet");
}

TEST(TableTest, RowsHaveALimit) {
  EXPECT_EQ(RowsOfFile(FilePath("chat.parquet"), {.max_row_bytes = 300}),
            "error: row 2: longer than 0 MiB");
  const std::string many = RowsOfFile(
      FilePath("chat.parquet"), {.max_row_bytes = 1 << 20, .free_bytes = 300, .max_ratio = 0});
  EXPECT_NE(many.find("error: row 2: the rows up to here take more than 300 B"), std::string::npos)
      << many;
}

TEST(TableTest, AFileThatIsCutShortIsNamed) {
  const std::string whole = io::ReadFile(FilePath("chat.parquet")).value();
  for (size_t size = 4; size < whole.size(); size += 7) {
    const std::string found = RowsOf(whole.substr(0, size));
    EXPECT_NE(found.find("its end is missing"), std::string::npos) << size << ": " << found;
  }
  const std::string stream = io::ReadFile(FilePath("chat_stream.arrow")).value();
  const std::string file = io::ReadFile(FilePath("types.arrow")).value();
  for (const std::string_view arrow : {std::string_view(stream), std::string_view(file)}) {
    for (size_t size = 8; size + 8 < arrow.size(); size += 7) {
      const std::string cut = RowsOf(arrow.substr(0, size));
      EXPECT_NE(cut.find("is cut short"), std::string::npos) << size << ": " << cut;
    }
  }
  // A part is missing in the middle, its end is there.
  const std::string found = RowsOf(whole.substr(0, 200) + whole.substr(whole.size() - 6000));
  EXPECT_NE(found.find("error: "), std::string::npos) << found;
}

TEST(TableTest, AFlippedByteChangesNoRowSilently) {
  // Its pages carry check sums, so that a page is either right or named.
  const std::string whole = io::ReadFile(FilePath("chat.parquet")).value();
  const std::string rows = Expected("chat");
  uint32_t footer = 0;
  std::memcpy(&footer, whole.data() + whole.size() - 8, 4);
  int named = 0;
  for (size_t i = 4; i < whole.size() - 8 - footer; i += 3) {
    std::string bytes = whole;
    bytes[i] ^= 0x10;
    const std::string found = RowsOf(bytes);
    named += found.starts_with("error: ");
    EXPECT_TRUE(found == rows || found.starts_with("error: ")) << i << ": " << found;
  }
  EXPECT_GT(named, 500);
}

// The files of files/hostile/make_files.py.
TEST(TableTest, FilesThatAskForMuchAreRefused) {
  const std::string names = "error: the names of its columns are too long";
  const std::string damaged = "a page that does not fit; the file is damaged";
  const std::pair<const char*, std::string> files[] = {
      {"map_dictionary.arrow", "error: column m is of Arrow's type 17, which is not read"},
      {"length.arrow", "error: a batch of rows is damaged: a column's length"},
      {"decimal.arrow", "error: column d has decimals of scale 536870912, which is not read"},
      {"decimal_wide.arrow", "error: column d has decimals of 32 bytes"},
      {"shared.arrow", "error: row 1: longer than 0 MiB"},
      {"nulls.arrow", "error: row 1: the rows up to here take too much work"},
      {"name_long.arrow", names},
      {"deep.parquet", "error: its Parquet footer is damaged: its schema is too deep"},
      {"name_long.parquet", names},
      {"names_many.parquet", names},
      {"decimal_scale.parquet", "error: column c has decimals of scale 536870912"},
      {"decimal_wide.parquet", "error: column c has decimals of 32 bytes"},
      {"shared.parquet", "its Parquet footer is damaged: two columns stand in the same bytes"},
      {"page_values.parquet", "error: row 1: column c: " + damaged},
      {"page_unpacked.parquet", "error: row 1: column c: " + damaged},
      {"page_delta.parquet", "pages of its row group take more than 536.9 MB"},
      {"page_empty.parquet", "column c: a page of 2.10 MB without a value"},
      {"dictionary_index.parquet", "column c: a page with fewer values than it says"},
  };
  for (const auto& [file, problem] : files) {
    const std::string found =
        RowsOfFile(FilePath(fmt::format("hostile/{}", file)),
                   {.max_row_bytes = 1'000'000, .max_ratio = 1, .free_work = 1 << 20});
    EXPECT_NE(found.find(problem), std::string::npos) << file << ": " << found.substr(0, 300);
  }
  const std::string index = RowsOfFile(FilePath("hostile/unsigned_index.arrow"));
  EXPECT_EQ(index, "{\"c\":\"z\"}\n");
}

TEST(TableTest, TextsAreCountedBeforeTheyAreAppended) {
  const Value text = {.bytes = "four"}, bytes = {.bytes = "\xff\xff\xff\xff"};
  EXPECT_TRUE(LongerThan({Meaning::kText}, text, 3));
  EXPECT_FALSE(LongerThan({Meaning::kText}, text, 4));
  EXPECT_FALSE(LongerThan({Meaning::kBytes}, bytes, 3));  // written as how many they are
}

TEST(TableTest, NothingOfAFileIsBelieved) {
  for (const char* name : {"chat_v2.parquet", "chat_stream.arrow", "chat_lz4.feather"}) {
    const std::string whole = io::ReadFile(FilePath(name)).value();
    for (size_t i = 0; i < whole.size(); i += 2) {
      for (const char change : {'\x01', '\x40', '\xff'}) {
        std::string bytes = whole;
        bytes[i] ^= change;
        RowsOf(bytes);  // any outcome but a crash
      }
    }
  }
  // A list of 2^28 lines of a schema.
  const std::string footer = "\x29\xfc\xff\xff\xff\x7f";
  std::string bytes = "PAR1" + footer;
  bytes += static_cast<char>(footer.size());
  bytes += std::string(3, '\0') + "PAR1";
  EXPECT_EQ(RowsOf(bytes), "error: its Parquet footer is damaged: it cannot be parsed");
}

}  // namespace
}  // namespace sft::columnar
