#include "common/io/tree.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io/file.h"

namespace sft::io {
namespace {

constexpr Owner kSomebody{65534, 65534};

class TreeTest : public testing::Test {
 protected:
  void SetUp() override { dir_ = *MakeTempDir("sft-tree-test"); }
  void TearDown() override { ASSERT_TRUE(RemoveAll(dir_).ok()); }

  void Make(const std::string& name, mode_t mode) {
    ASSERT_TRUE(WriteFileAtomic(dir_ + "/" + name, "x").ok());
    ASSERT_EQ(chmod((dir_ + "/" + name).c_str(), mode), 0);
  }
  void MakeFolder(const std::string& name, mode_t mode) {
    ASSERT_TRUE(MakeDirs(dir_ + "/" + name).ok());
    ASSERT_EQ(chmod((dir_ + "/" + name).c_str(), mode), 0);
  }
  mode_t ModeOf(const std::string& name) {
    struct stat info {};
    EXPECT_EQ(stat((dir_ + "/" + name).c_str(), &info), 0) << name;
    return info.st_mode & 07777;
  }
  uid_t UidOf(const std::string& name) {
    struct stat info {};
    EXPECT_EQ(lstat((dir_ + "/" + name).c_str(), &info), 0) << name;
    return info.st_uid;
  }

  std::string dir_;
};

TEST_F(TreeTest, OnlyTheOwnerCanReadAClosedTree) {
  MakeFolder("a/b", 0755);
  MakeFolder("a", 0775);
  Make("a/f", 0644);
  Make("a/b/program", 0755);
  ASSERT_TRUE(CloseTree(dir_ + "/a").ok());
  EXPECT_EQ(ModeOf("a"), 0700u);
  EXPECT_EQ(ModeOf("a/b"), 0700u);
  EXPECT_EQ(ModeOf("a/f"), 0600u);
  EXPECT_EQ(ModeOf("a/b/program"), 0700u);
  EXPECT_TRUE(CloseTree(dir_ + "/nothing").ok());
}

TEST_F(TreeTest, LinksOutOfATreeAreLeftAlone) {
  Make("outside", 0644);
  MakeFolder("elsewhere", 0755);
  MakeFolder("a", 0755);
  ASSERT_EQ(symlink((dir_ + "/outside").c_str(), (dir_ + "/a/link").c_str()), 0);
  ASSERT_EQ(symlink((dir_ + "/elsewhere").c_str(), (dir_ + "/a/folder").c_str()), 0);
  ASSERT_EQ(link((dir_ + "/outside").c_str(), (dir_ + "/a/second-name").c_str()), 0);
  ASSERT_EQ(mkfifo((dir_ + "/a/pipe").c_str(), 0644), 0);
  ASSERT_TRUE(CloseTree(dir_ + "/a").ok());
  EXPECT_EQ(ModeOf("a"), 0700u);
  EXPECT_EQ(ModeOf("outside"), 0644u);
  EXPECT_EQ(ModeOf("elsewhere"), 0755u);
}

TEST_F(TreeTest, ANewOwnerGetsTheTreeButNoLinkTargets) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  Make("outside", 0644);
  MakeFolder("a/b", 0755);
  Make("a/b/f", 0644);
  ASSERT_EQ(symlink((dir_ + "/outside").c_str(), (dir_ + "/a/link").c_str()), 0);
  ASSERT_EQ(link((dir_ + "/outside").c_str(), (dir_ + "/a/b/second-name").c_str()), 0);
  ASSERT_TRUE(CloseTree(dir_ + "/a", kSomebody).ok());
  EXPECT_EQ(UidOf("a"), kSomebody.uid);
  EXPECT_EQ(UidOf("a/b/f"), kSomebody.uid);
  EXPECT_EQ(UidOf("outside"), 0u);
}

TEST_F(TreeTest, ADataFolderIsClosedWithTheNamedEntriesOnly) {
  MakeFolder("own", 0755);
  Make("own/f", 0644);
  MakeFolder("closed", 0700);
  Make("closed/f", 0644);
  MakeFolder("models", 0755);
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  const auto left = CloseDataDir(dir_, {"own", "closed", "missing"});
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_TRUE(left->empty());
  EXPECT_EQ(ModeOf(""), 0700u);
  EXPECT_EQ(ModeOf("own"), 0700u);
  EXPECT_EQ(ModeOf("own/f"), 0600u);
  EXPECT_EQ(ModeOf("closed/f"), 0644u) << "it is not looked into";
  EXPECT_EQ(ModeOf("models"), 0755u);
  ASSERT_EQ(chmod(dir_.c_str(), 01777), 0);
  ASSERT_TRUE(CloseDataDir(dir_, {}).ok());
  EXPECT_EQ(ModeOf(""), 01777u) << "all users share it";
}

TEST_F(TreeTest, ADataFolderOfAnotherUserIsReportedWithoutError) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  MakeFolder("root", 0777);
  MakeFolder("own", 0777);
  ASSERT_EQ(chown((dir_ + "/own").c_str(), kSomebody.uid, kSomebody.gid), 0);
  Make("own/of-root", 0644);
  ASSERT_EQ(chmod(dir_.c_str(), 0777), 0);
  ASSERT_EQ(seteuid(kSomebody.uid), 0);
  const auto left = CloseDataDir(dir_, {"root", "own", "missing"});
  const absl::Status whole = CloseTree(dir_ + "/root");
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_EQ(*left, (std::vector<std::string>{dir_, dir_ + "/root"}));
  EXPECT_EQ(ModeOf("own"), 0700u) << "what lies in it is closed by that";
  EXPECT_NE(OpenToOthers(*left).find("`chmod o-rwx " + dir_ + " " + dir_ + "/root`"),
            std::string::npos);
  EXPECT_TRUE(absl::IsPermissionDenied(whole)) << "not where it was asked for";
}

TEST_F(TreeTest, ADeepTreeDoesNotStopTheWalk) {
  std::string path = "a";
  for (int i = 0; i < 200; ++i) path += "/d";
  MakeFolder(path, 0755);
  Make("a/f", 0644);
  const absl::Status closed = CloseTree(dir_ + "/a");
  EXPECT_TRUE(closed.ok()) << closed;
  EXPECT_EQ(ModeOf("a/f"), 0600u);
}

TEST_F(TreeTest, AFolderMayBeALinkWhereNobodyElseCanMakeOne) {
  MakeFolder("disk", 0755);
  MakeFolder("data", 0755);
  const Owner self{geteuid(), getegid()};
  ASSERT_EQ(symlink((dir_ + "/disk").c_str(), (dir_ + "/data/cache").c_str()), 0);
  EXPECT_TRUE(MakeDirAs(dir_ + "/data/cache", self, 0700).ok());
  EXPECT_EQ(ModeOf("disk"), 0700u);
  MakeFolder("data", 0775);
  EXPECT_FALSE(MakeDirAs(dir_ + "/data/cache", self, 0700).ok()) << "the group can";
  MakeFolder("data", 01777);
  EXPECT_FALSE(MakeDirAs(dir_ + "/data/cache", self, 0700).ok()) << "all can";
  if (geteuid() != 0) return;
  MakeFolder("data", 0755);
  ASSERT_EQ(chown((dir_ + "/data").c_str(), kSomebody.uid, kSomebody.gid), 0);
  EXPECT_FALSE(MakeDirAs(dir_ + "/data/cache", self, 0700).ok()) << "its owner can";
}

}  // namespace
}  // namespace sft::io
