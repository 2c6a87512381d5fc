#include "common/io/disk_space.h"

#include <gtest/gtest.h>

#include "common/io/file.h"

namespace sft::io {
namespace {

TEST(DiskSpaceTest, ParsesAShareASizeOrTheSmallerOfBoth) {
  const DiskSpace small{1'000'000'000, 0}, large{int64_t{10} * 1'000'000'000'000, 0};
  EXPECT_EQ(ParseDiskMark("5%")->Of(small), 50'000'000);
  EXPECT_EQ(ParseDiskMark("10GB")->Of(small), 10'000'000'000);
  EXPECT_EQ(ParseDiskMark("5%,10GB")->Of(small), 50'000'000);
  EXPECT_EQ(ParseDiskMark("10GB,5%")->Of(large), 10'000'000'000);
  EXPECT_EQ(ParseDiskMark("1.5TB")->Of(large), 1'500'000'000'000);
  EXPECT_EQ(ParseDiskMark("off")->Of(large), 0);
  EXPECT_TRUE(ParseDiskMarks(kDefaultLowMark, kDefaultFullMark).ok());
}

TEST(DiskSpaceTest, AWrongMarkIsRefusedWithTheCorrectForm) {
  for (const char* text : {"", "5", "0%", "100%", "-1GB", "5%,5%", "1GB,2GB", "5%,", "nan%", "5 %",
                           "1e9TB", "5%,1GB,1GB"}) {
    const absl::Status refused = ParseDiskMark(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text;
    EXPECT_NE(Message(refused).find("5%,10GB"), std::string::npos) << text;
  }
}

TEST(DiskSpaceTest, TheLevelFollowsTheMarks) {
  const DiskMarks marks = *ParseDiskMarks("10%", "5%");
  EXPECT_EQ(LevelOf({1000, 100}, marks), DiskLevel::kOk);
  EXPECT_EQ(LevelOf({1000, 99}, marks), DiskLevel::kLow);
  EXPECT_EQ(LevelOf({1000, 50}, marks), DiskLevel::kLow);
  EXPECT_EQ(LevelOf({1000, 49}, marks), DiskLevel::kFull);
  EXPECT_EQ(LevelOf({1000, 0}, *ParseDiskMarks("off", "off")), DiskLevel::kOk);
}

TEST(DiskSpaceTest, ATreeHasTheBytesOfItsFiles) {
  const std::string dir = *MakeTempDir("tree-");
  EXPECT_EQ(TreeBytes(dir), 0);
  ASSERT_TRUE(MakeDirs(dir + "/a/b").ok());
  ASSERT_TRUE(WriteFileAtomic(dir + "/a/b/one", "12345").ok());
  ASSERT_TRUE(WriteFileAtomic(dir + "/two", "67").ok());
  EXPECT_EQ(TreeBytes(dir), 7);
  EXPECT_EQ(TreeBytes(dir + "/two"), 2);
  EXPECT_EQ(TreeBytes(dir + "/none"), 0);
  ASSERT_TRUE(RemoveAll(dir).ok());
}

}  // namespace
}  // namespace sft::io
