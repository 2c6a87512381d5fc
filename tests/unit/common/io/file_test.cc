#include "common/io/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace sft::io {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(MakeTempDir("file-test").value()) {}
  ~FileTest() override { (void)RemoveAll(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_;
};

TEST_F(FileTest, AtomicWriteReplacesTheWholeFileAndLeavesNothingElse) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "first, longer").ok());
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "second").ok());
  EXPECT_EQ(ReadFile(Path("f")).value(), "second");
  EXPECT_EQ(ListDir(folder_).value(), std::vector<std::string>{"f"});
}

TEST_F(FileTest, AnythingButARegularFileIsRefusedWithoutOpeningIt) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const absl::Status pipe = CheckRegularFile(Path("pipe"));
  EXPECT_TRUE(absl::IsInvalidArgument(pipe)) << pipe;
  EXPECT_NE(Message(pipe).find("pipe is a pipe, not a regular file"), std::string_view::npos);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRegularFile(folder_)));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRegularFile("/dev/null")));
  EXPECT_TRUE(absl::IsNotFound(CheckRegularFile(Path("none"))));
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "x").ok());
  EXPECT_TRUE(CheckRegularFile(Path("f")).ok());
}

TEST_F(FileTest, AtomicWriteIntoAMissingFolderNamesThePath) {
  const absl::Status status = WriteFileAtomic(Path("none/f"), "x");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(Message(status).find("none/f"), std::string_view::npos) << status;
}

TEST_F(FileTest, ReadRefusesAFileOverTheLimit) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "12345").ok());
  EXPECT_EQ(ReadFile(Path("f"), 5).value(), "12345");
  EXPECT_TRUE(absl::IsResourceExhausted(ReadFile(Path("f"), 4).status()));
}

TEST_F(FileTest, AppendFileContinuesAfterReopen) {
  {
    AppendFile file = AppendFile::Open(Path("log")).value();
    ASSERT_TRUE(file.Append("one\n").ok());
    EXPECT_EQ(file.size(), 4);
  }
  AppendFile file = AppendFile::Open(Path("log")).value();
  EXPECT_EQ(file.size(), 4);
  ASSERT_TRUE(file.Append("two\n").ok());
  ASSERT_TRUE(file.Sync().ok());
  EXPECT_EQ(ReadFile(Path("log")).value(), "one\ntwo\n");
  ASSERT_TRUE(file.Truncate(4).ok());
  ASSERT_TRUE(file.Append("2\n").ok());
  EXPECT_EQ(ReadFile(Path("log")).value(), "one\n2\n");
  EXPECT_TRUE(absl::IsOutOfRange(file.Truncate(100)));
}

TEST_F(FileTest, AFullDiskIsResourceExhausted) {
  AppendFile file = AppendFile::Open("/dev/full").value();
  EXPECT_TRUE(absl::IsResourceExhausted(file.Append("x")));
  EXPECT_EQ(file.size(), 0);
}

TEST_F(FileTest, RemoveAllOfAMissingFileIsOk) {
  EXPECT_TRUE(RemoveAll(Path("none")).ok());
  ASSERT_TRUE(MakeDirs(Path("a/b/c")).ok());
  EXPECT_TRUE(IsDirectory(Path("a/b/c")));
  EXPECT_TRUE(RemoveAll(Path("a")).ok());
  EXPECT_FALSE(Exists(Path("a")));
}

}  // namespace
}  // namespace sft::io
