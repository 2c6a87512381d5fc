#include "worker/hub/hub_cache.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/worker/hub/fake_hub.h"

namespace sft::worker {
namespace {

using Files = std::vector<hub::HubFile>;

Files Named(const std::vector<std::string>& paths) {
  Files files;
  for (const std::string& path : paths)
    files.push_back({path, 1, fmt::format("{:040x}", files.size()), "", ""});
  return files;
}

std::string PathsOf(const absl::StatusOr<Files>& files) {
  if (!files.ok()) return std::string(Message(files.status()));
  std::string paths;
  for (const hub::HubFile& file : *files) paths += file.path + " ";
  return paths;
}

TEST(HubCacheTest, OnlyWhatJobsNeedIsTaken) {
  EXPECT_EQ(PathsOf(NeededFiles(
                Named({".gitattributes", "README.md", "config.json", "generation_config.json",
                       "model.safetensors", "pytorch_model.bin", "tokenizer.json", "modeling_x.py",
                       "model.gguf", "onnx/model.onnx", "original/model.safetensors"}),
                "")),
            "config.json generation_config.json tokenizer.json README.md model.safetensors ");
}

TEST(HubCacheTest, ShardsAreThoseOfTheIndex) {
  const Files files = Named({"config.json", "model.safetensors.index.json", "a.safetensors",
                             "b.safetensors", "consolidated.safetensors"});
  EXPECT_TRUE(NeedsIndex(files));
  EXPECT_EQ(PathsOf(NeededFiles(files, "")), "config.json model.safetensors.index.json ");
  EXPECT_EQ(
      PathsOf(NeededFiles(files, R"({"weight_map": {"x": "b.safetensors", "y": "a.safetensors",
                                          "z": "b.safetensors"}})")),
      "config.json model.safetensors.index.json a.safetensors b.safetensors ");
  for (const char* index :
       {R"({"weight_map": {"x": "c.safetensors"}})", R"({"weight_map": {"x": "../a.safetensors"}})",
        R"({"weight_map": {"x": "config.json"}})", R"({"weight_map": {"x": 1}})", "[]"}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(NeededFiles(files, index).status())) << index;
  }
}

TEST(HubCacheTest, WhatIsNoModelForJobsSaysWhatItHas) {
  EXPECT_NE(PathsOf(NeededFiles(Named({"x.gguf"}), "")).find("no config.json"), std::string::npos);
  EXPECT_NE(PathsOf(NeededFiles(Named({"config.json", "pytorch_model.bin"}), ""))
                .find("it has pytorch_model.bin, and other formats are never read"),
            std::string::npos);
}

TEST(HubCacheTest, AGitHashIsGits) {
  EXPECT_EQ(GitBlobId(""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(GitBlobId("hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(GitBlobId(std::string(1000, 'x')), "14c7dfdd4258dec5c0e9d2e919bd249bd674be1f");
}

class HubCacheFolderTest : public testing::Test {
 protected:
  HubCacheFolderTest() : cache_(dir_.path(), "org/name") { EXPECT_TRUE(cache_.Prepare().ok()); }
  void Fill(const Files& files) {
    for (const hub::HubFile& file : files) {
      ASSERT_TRUE(io::WriteFileAtomic(cache_.BlobPath(file.etag()), "x").ok());
    }
  }
  TempFolder dir_;
  const std::string commit_ = std::string(40, 'c');
  HubCache cache_;
};

TEST_F(HubCacheFolderTest, ASnapshotsLinksAreRelativeAndItsTreeIsReadAgain) {
  Files files = Named({"config.json", "model.safetensors", "sub/deep/a.json"});
  files[1].lfs_sha256 = std::string(64, 'a');
  files[1].xet_hash = "xet";
  Fill(files);
  ASSERT_TRUE(cache_.WriteTree(commit_, files).ok());
  ASSERT_TRUE(cache_.LinkSnapshot(commit_, files).ok());
  ASSERT_TRUE(cache_.LinkSnapshot(commit_, files).ok());
  const std::string snapshot = cache_.SnapshotDir(commit_);
  EXPECT_EQ(std::filesystem::read_symlink(snapshot + "/model.safetensors").string(),
            "../../blobs/" + std::string(64, 'a'));
  EXPECT_EQ(*io::ReadFile(snapshot + "/sub/deep/a.json"), "x");
  const auto read = ReadTree(cache_.folder(), commit_);
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 3);
  EXPECT_EQ((*read)[1].etag(), std::string(64, 'a'));
  EXPECT_EQ((*read)[1].xet_hash, "xet");
  EXPECT_TRUE(io::Exists(dir_.path() + "/CACHEDIR.TAG"));
}

TEST_F(HubCacheFolderTest, ARevisionIsFoundByItsReference) {
  ASSERT_TRUE(cache_.WriteRef("main", commit_).ok());
  ASSERT_TRUE(cache_.WriteRef("refs/pr/1", commit_).ok());
  EXPECT_EQ(CommitOf(cache_.folder(), "main"), commit_);
  EXPECT_EQ(CommitOf(cache_.folder(), "refs/pr/1"), commit_);
  EXPECT_EQ(CommitOf(cache_.folder(), commit_), commit_);
  EXPECT_EQ(CommitOf(cache_.folder(), "other"), "");
  EXPECT_EQ(CommitOf(cache_.folder(), "../refs/main"), "");
}

TEST_F(HubCacheFolderTest, AHalfSnapshotIsNamedAndAWholeOneIsNot) {
  const Files files = Named({"config.json", "model.safetensors", "tokenizer.json", "README.md"});
  Fill({files[0], files[2]});
  ASSERT_TRUE(cache_.LinkSnapshot(commit_, {files[0], files[2]}).ok());
  const std::string snapshot = cache_.SnapshotDir(commit_);
  EXPECT_EQ(MissingOf(snapshot), "");  // without a tree nobody can know
  ASSERT_TRUE(cache_.WriteTree(commit_, files).ok());
  EXPECT_EQ(MissingOf(snapshot),
            "its download is not complete: model.safetensors of 3 files that jobs need is missing");
  Fill(files);
  ASSERT_TRUE(cache_.LinkSnapshot(commit_, files).ok());
  EXPECT_EQ(MissingOf(snapshot), "");
  ASSERT_TRUE(io::WriteFileAtomic(cache_.BlobPath(files[1].etag()), "").ok());
  EXPECT_NE(MissingOf(snapshot).find("model.safetensors (0 of 1 bytes)"), std::string::npos);
}

TEST_F(HubCacheFolderTest, AVocabularyThatNobodyReadsMayBeMissing) {
  const Files files = Named({"config.json", "merges.txt", "model.safetensors", "tokenizer.json",
                             "tokenizer.model", "vocab.json", "chat_template.jinja"});
  Fill(files);
  ASSERT_TRUE(cache_.WriteTree(commit_, files).ok());
  ASSERT_TRUE(cache_.LinkSnapshot(commit_, {files[0], files[2], files[3], files[6]}).ok());
  EXPECT_EQ(MissingOf(cache_.SnapshotDir(commit_)), "");
  ASSERT_TRUE(io::RemoveAll(cache_.SnapshotDir(commit_) + "/chat_template.jinja").ok());
  EXPECT_NE(MissingOf(cache_.SnapshotDir(commit_)).find("chat_template.jinja"), std::string::npos);
}

TEST_F(HubCacheFolderTest, ATreeWhoseNamesLeadOutOfTheCacheIsNone) {
  ASSERT_TRUE(io::MakeDirs(cache_.folder() + "/trees").ok());
  const std::string id(40, 'a');
  const auto read = [&](const std::string& path, const std::string& blob, const char* more = "") {
    const std::string text = fmt::format(
        R"({{"format_version": 1, "files": {{"{}": {{"size": 1, "blob_id": "{}"{}}}}}}})", path,
        blob, more);
    EXPECT_TRUE(io::WriteFileAtomic(cache_.folder() + "/trees/" + commit_ + ".json", text).ok());
    return ReadTree(cache_.folder(), commit_).has_value();
  };
  EXPECT_TRUE(read("a", id));
  EXPECT_FALSE(read("a", "../../../victim"));
  EXPECT_FALSE(read("a", ""));
  EXPECT_FALSE(read("../a", id));
  EXPECT_FALSE(read("/a", id));
  EXPECT_FALSE(read("a", id, R"(, "lfs_sha256": "../../../victim")"));
}

TEST_F(HubCacheFolderTest, ATreeThatIsBrokenOrOfAnotherFormatIsNone) {
  for (const char* text :
       {"", "[]", R"({"format_version": 2, "files": {}})", R"({"format_version": 1, "files": []})",
        R"({"format_version": 1, "files": {"a": {"size": "1"}}})",
        R"({"format_version": 1, "files": {"a": 1}})"}) {
    ASSERT_TRUE(io::MakeDirs(cache_.folder() + "/trees").ok());
    ASSERT_TRUE(io::WriteFileAtomic(cache_.folder() + "/trees/" + commit_ + ".json", text).ok());
    EXPECT_FALSE(ReadTree(cache_.folder(), commit_)) << text;
  }
}

}  // namespace
}  // namespace sft::worker
