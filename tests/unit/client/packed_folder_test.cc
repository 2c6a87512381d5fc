#include "client/base/packed_folder.h"

#include <gtest/gtest.h>

#include "common/data/dataset_check.h"
#include "common/data/row_reader.h"
#include "common/io/file.h"

namespace sft::client {
namespace {

class PackedFolderTest : public ::testing::Test {
 protected:
  ~PackedFolderTest() override { EXPECT_TRUE(io::RemoveAll(dir_).ok()); }
  void Put(const std::string& name, std::string_view text) const {
    ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/" + name, text).ok());
  }
  const std::string dir_ = io::MakeTempDir("packed-folder").value();
};

TEST_F(PackedFolderTest, RowsOfAllFilesAreOneFile) {
  Put("b.json", "[{\n\"text\": \"3\"\n},\n{\"text\": \"4\\n\"}]");
  Put("a.csv", "text\n1\n\"2\n\"\n");
  std::string path, bytes;
  {
    const auto packed = PackedFolder::Make(dir_);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->files(), 2);
    EXPECT_EQ(packed->chosen(), "split train");
    path = packed->path();
    bytes = *io::ReadFile(path);
    std::string rows;
    ASSERT_TRUE(data::ReadRows(path, path, {},
                               [&](int64_t line, std::string_view row) -> absl::StatusOr<bool> {
                                 rows += std::to_string(line) + std::string(row) + "|";
                                 return true;
                               })
                    .ok());
    EXPECT_EQ(rows, R"(1{"text":"1"}|2{"text":"2\n"}|3{ "text": "3" }|4{"text": "4\n"}|)");
  }
  EXPECT_FALSE(io::Exists(path)) << "it goes with the object";
  const auto again = PackedFolder::Make(dir_);
  EXPECT_EQ(*io::ReadFile(again->path()), bytes) << "its hash is that of an earlier upload";
}

TEST_F(PackedFolderTest, ListsInTablesAreFoundUnderTheirOwnNames) {
  Put("a.csv", "chat\n\"[{\"\"role\"\":\"\"user\"\"}]\"\n");
  const auto row_of = [&](const data::RowNames& names) {
    const auto packed = PackedFolder::Make(dir_, names);
    std::string found;
    EXPECT_TRUE(data::ReadRows(packed->path(), packed->path(), {},
                               [&](int64_t, std::string_view row) -> absl::StatusOr<bool> {
                                 found = row;
                                 return true;
                               })
                    .ok());
    return found;
  };
  EXPECT_EQ(row_of(data::NamesOf({"messages=chat"}, {})), R"({"chat":[{"role":"user"}]})");
  EXPECT_EQ(row_of({}), R"({"chat":"[{\"role\":\"user\"}]"})");
}

TEST_F(PackedFolderTest, ABadFileIsNamedWithItsLine) {
  Put("a.csv", "text,b\n1\n");
  const auto packed = PackedFolder::Make(dir_);
  EXPECT_TRUE(absl::IsInvalidArgument(packed.status()));
  EXPECT_NE(Message(packed.status()).find("/a.csv: line 2: 1 field"), std::string_view::npos)
      << packed.status();
  EXPECT_TRUE(NamesFolder(dir_ + "#:test"));
  EXPECT_FALSE(NamesFolder(dir_ + "/a.csv"));
}

}  // namespace
}  // namespace sft::client
