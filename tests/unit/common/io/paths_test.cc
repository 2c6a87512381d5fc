#include "common/io/paths.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "common/io/file.h"
#include "common/io/is_there.h"

namespace sft::io {
namespace {

class PathsTest : public testing::Test {
 protected:
  PathsTest() : folder_(std::filesystem::canonical(MakeTempDir("paths-test").value()).string()) {
    EXPECT_TRUE(MakeDirs(folder_ + "/models/a").ok());
    EXPECT_TRUE(MakeDirs(folder_ + "/models-secret").ok());
    std::filesystem::create_directory_symlink("../models-secret", folder_ + "/models/link");
  }
  ~PathsTest() override { (void)RemoveAll(folder_); }

  const std::string folder_;
};

TEST_F(PathsTest, ResolvesAFolderBelowARoot) {
  EXPECT_EQ(ResolveBelow(folder_ + "/models/./a", {folder_ + "/models"}).value(),
            folder_ + "/models/a");
  EXPECT_EQ(ResolveBelow(folder_ + "/models", {folder_ + "/models/"}).value(), folder_ + "/models");
  EXPECT_TRUE(ResolveBelow(folder_ + "/models", {"/"}).ok());
}

TEST_F(PathsTest, RefusesPathsThatLeaveTheRoot) {
  for (const std::string path : {"/models-secret", "/models/../models-secret", "/models/link"}) {
    EXPECT_TRUE(
        absl::IsPermissionDenied(ResolveBelow(folder_ + path, {folder_ + "/models"}).status()))
        << path;
  }
  EXPECT_TRUE(absl::IsPermissionDenied(ResolveBelow(folder_, {}).status()));
}

TEST_F(PathsTest, DoesNotRevealWhatExistsOutsideTheRoots) {
  namespace fs = std::filesystem;
  const std::string root = folder_ + "/models";
  EXPECT_TRUE(WriteFileAtomic(folder_ + "/file", "x").ok());
  fs::create_symlink(folder_ + "/loop", folder_ + "/loop");
  fs::create_symlink(folder_ + "/gone", root + "/dangling");
  fs::create_symlink(folder_ + "/file", root + "/escape");
  for (const std::string& path :
       {folder_ + "/file", folder_ + "/none", folder_ + "/file/below", folder_ + "/loop", folder_,
        folder_ + "/" + std::string(300, 'x'), root + "/dangling", root + "/escape",
        root + "/escape/below", root + "/link/none", root + "/../none"}) {
    EXPECT_EQ(Message(ResolveBelow(path, {root}).status()),
              path + " leads to nothing below an allowed folder of this node (" + root + ")");
    EXPECT_TRUE(absl::IsPermissionDenied(ResolveBelow(path, {root}).status())) << path;
  }
  EXPECT_TRUE(absl::IsNotFound(ResolveBelow(root + "/none", {root}).status()));
  EXPECT_TRUE(absl::IsNotFound(ResolveBelow(root + "/a/none/x", {root}).status()));
}

TEST_F(PathsTest, DistinguishesMissingForbiddenAndRelativePaths) {
  EXPECT_TRUE(absl::IsNotFound(ResolveBelow(folder_ + "/none", {"/"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveBelow("models/a", {"/"}).status()));
}

TEST(SafeRelativeTest, AcceptsOnlyPathsThatStayInside) {
  for (const std::string_view good : {"a", "a/b.safetensors", "..a/b", "a..b"}) {
    EXPECT_TRUE(IsSafeRelative(good)) << good;
  }
  for (const std::string_view bad : {"", "/a", "..", "a/../b", "a//b", "./a", "a/", "a\\b"}) {
    EXPECT_FALSE(IsSafeRelative(bad)) << bad;
  }
  EXPECT_FALSE(IsSafeRelative(std::string_view("a\0b", 3)));
  EXPECT_FALSE(IsSafeRelative(std::string(513, 'a')));
}

TEST(IsThereTest, ALinkThatLeadsToItselfIsAnErrorThatNamesIt) {
  const std::string dir = MakeTempDir("is-there-").value();
  EXPECT_EQ(IsThere(dir).value(), true);
  EXPECT_EQ(IsThere(dir + "/none").value(), false);
  EXPECT_EQ(IsThere(dir + "/none/deeper").value(), false);
  std::filesystem::create_symlink("nowhere", dir + "/dangling");
  EXPECT_EQ(IsThere(dir + "/dangling").value(), false);
  std::filesystem::create_symlink("loop", dir + "/loop");
  const absl::Status loop = IsThere(dir + "/loop").status();
  EXPECT_EQ(std::string(Message(loop)),
            "cannot read " + dir + "/loop: Too many levels of symbolic links");
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace sft::io
