#include "common/data/folder.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/data/front_matter.h"
#include "common/io/file.h"

namespace sft::data {
namespace {

class FolderTest : public ::testing::Test {
 protected:
  ~FolderTest() override { EXPECT_TRUE(io::RemoveAll(dir_).ok()); }

  void Put(const std::string& file, std::string_view text = "{}\n") const {
    const std::filesystem::path path = std::filesystem::path(dir_) / file;
    ASSERT_TRUE(io::MakeDirs(path.parent_path().string()).ok());
    ASSERT_TRUE(io::WriteFileAtomic(path.string(), text).ok());
  }

  // The files relative to the folder, or the error.
  std::string Files(const std::string& more = "") const {
    const absl::StatusOr<FolderFiles> files = FilesOfFolder(ParseFolderName(dir_ + more));
    if (!files.ok()) return "error: " + std::string(Message(files.status()));
    std::string text;
    for (const std::string& path : files->paths) {
      EXPECT_TRUE(path.starts_with(dir_ + "/"));
      text += (text.empty() ? "" : " ") + path.substr(dir_.size() + 1);
    }
    return text;
  }

  const std::string dir_ = io::MakeTempDir("folder-test").value();
};

TEST_F(FolderTest, NamesSayWhichFilesAreTrainedOn) {
  Put("data/train-00001-of-00002.parquet");
  Put("data/train-00000-of-00002.parquet");
  Put("data/validation-00000-of-00001.parquet");
  Put("README.md", "# A data set\n");
  Put("dataset_infos.json");
  Put("load.py");
  Put(".cache/train.jsonl");
  Put("notes.txt");
  EXPECT_EQ(Files(), "data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet");
  EXPECT_EQ(Files("#:validation"), "data/validation-00000-of-00001.parquet");
  EXPECT_EQ(Files("#:dev"), "data/validation-00000-of-00001.parquet");
  EXPECT_NE(Files("#:test").find("has the splits train, validation, not test; name one, as"),
            std::string::npos)
      << Files("#:test");
  EXPECT_NE(Files("#en").find("has no configs"), std::string::npos);
}

TEST_F(FolderTest, NamesOfFoldersSayItWhereThoseOfFilesDoNot) {
  Put("training/b.jsonl.gz");
  Put("training/a.csv");
  Put("testing/a.csv");
  EXPECT_EQ(Files(), "training/a.csv training/b.jsonl.gz");
  EXPECT_EQ(Files("#:test"), "testing/a.csv");
}

TEST_F(FolderTest, WhereNoNameSaysAnythingAllFilesAreRead) {
  Put("2.md");
  Put("sub/1.txt");
  Put("README.md", "text\n");
  EXPECT_EQ(Files(), "2.md sub/1.txt");
  Put("trainer.jsonl");  // not the word
  EXPECT_EQ(Files(), "trainer.jsonl");
}

TEST_F(FolderTest, AFolderWithoutRowsIsNamed) {
  Put("a.bin");
  EXPECT_NE(Files().find("has no files with rows"), std::string::npos) << Files();
  EXPECT_NE(Files("/missing").find("error: "), std::string::npos);
}

TEST_F(FolderTest, ConfigsOfADataSetCardAreChosen) {
  Put("README.md", R"(---
license: mit   # a comment
tags:
- one
- "two: three"
description: >
  Prose: with a colon
configs:
- config_name: en
  data_files:
  - split: train
    path: "en/part-*.jsonl"
  - split: test
    path:
    - en/extra.jsonl
    - en/more/**
- config_name: de
  data_dir: de
  data_files: "*.jsonl"
---
# Title
)");
  Put("en/part-2.jsonl");
  Put("en/part-1.jsonl");
  Put("en/extra.jsonl");
  Put("en/more/deep/x.jsonl");
  Put("de/a.jsonl");
  EXPECT_NE(Files().find("has the configs en, de, and none is the default; name one, as"),
            std::string::npos)
      << Files();
  EXPECT_EQ(Files("#en"), "en/part-1.jsonl en/part-2.jsonl");
  EXPECT_EQ(Files("#en:test"), "en/extra.jsonl en/more/deep/x.jsonl");
  EXPECT_EQ(Files("#de"), "de/a.jsonl");
  EXPECT_NE(Files("#fr").find("not fr"), std::string::npos) << Files("#fr");
  Put("README.md",
      "---\nconfigs:\n  - config_name: en\n    data_files: en/*.jsonl\n  - config_name: "
      "de\n    default: true\n    data_files: [de/a.jsonl, 'en/extra.jsonl']\n---\n");
  EXPECT_EQ(Files(), "de/a.jsonl en/extra.jsonl");
}

TEST_F(FolderTest, WhatDatasetsSavedIsReadInItsOrder) {
  Put("dataset_dict.json", R"({"splits": ["train", "test"]})");
  Put("train/state.json",
      R"({"_data_files": [{"filename": "data-00001.arrow"}, {"filename": "data-00000.arrow"}]})");
  Put("test/state.json", R"({"_data_files": [{"filename": "../../etc/passwd"}]})");
  EXPECT_EQ(Files(), "train/data-00001.arrow train/data-00000.arrow");
  EXPECT_EQ(Files("/train"), "train/data-00001.arrow train/data-00000.arrow");
  EXPECT_NE(Files("#:test").find("names no files"), std::string::npos);
}

TEST(FrontMatterTest, WhatIsNoYamlOfCardsIsNamedByLine) {
  EXPECT_EQ(ParseFrontMatter("# no front matter")->dump(), "{}");
  EXPECT_EQ(ParseFrontMatter("---\na: [x, 'y z']\nb:\n  c: \"d # e\" # f\n---\n")->dump(),
            R"({"a":["x","y z"],"b":{"c":"d # e"}})");
  const auto bad = ParseFrontMatter("---\na: b\nnonsense\n---\n");
  EXPECT_NE(Message(bad.status()).find("README.md, line 3"), std::string_view::npos);
  EXPECT_FALSE(ParseFrontMatter("---\n-\n---\n").ok());
  // Keys are texts, and lists in brackets have a depth.
  const auto key = ParseFrontMatter("---\na: b\n[c]: d\n---\n");
  EXPECT_NE(Message(key.status()).find("README.md, line 3"), std::string_view::npos);
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto brackets = ParseFrontMatter("---\nx: y\na: " + deep + "\n---\n");
  EXPECT_NE(Message(brackets.status()).find("README.md, line 3"), std::string_view::npos);
}

TEST(FrontMatterTest, AWordGoesOnOverLinesThatStandFurtherRight) {
  const auto card = ParseFrontMatter(
      "---\na: one\n  two\nb:\n  three\n  four\nc: [x,\n    y]\nd:\n- five\n  six\ne: >+\n  "
      "prose: so\nf: g\n---\n");
  ASSERT_TRUE(card.ok()) << card.status();
  EXPECT_EQ(card->dump(),
            R"({"a":"one two","b":"three four","c":["x","y"],"d":["five six"],"e":"","f":"g"})");
  EXPECT_FALSE(ParseFrontMatter("---\na: b\n  c: d\n---\n").ok());
}

}  // namespace
}  // namespace sft::data
