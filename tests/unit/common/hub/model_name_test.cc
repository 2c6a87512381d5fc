#include "common/hub/model_name.h"

#include <gtest/gtest.h>

namespace sft::hub {
namespace {

TEST(ModelNameTest, AnOrganisationAndANameWithOrWithoutARevision) {
  const auto plain = ParseModelName("Qwen/Qwen3-8B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->id, "Qwen/Qwen3-8B");
  EXPECT_EQ(plain->revision, "");
  const auto pull = ParseModelName("org/name@refs/pr/1");
  ASSERT_TRUE(pull);
  EXPECT_EQ(pull->revision, "refs/pr/1");
  EXPECT_EQ(pull->Text(), "org/name@refs/pr/1");
}

TEST(ModelNameTest, WhatCannotBeOnAHubIsNone) {
  for (const char* text : {"",
                           "name",
                           "/path/to/model",
                           "./org/name",
                           "~/model",
                           "org/",
                           "/name",
                           "org/name/more",
                           "org//name",
                           "org/..",
                           "../name",
                           "org/na me",
                           "org/name@",
                           "org/name@../x",
                           "org/name@a//b",
                           "org/name@-x",
                           "org/na--me",
                           "models--org--name",
                           "org/name@a b",
                           "org/name.",
                           "org/.name"}) {
    EXPECT_FALSE(ParseModelName(text)) << text;
  }
  EXPECT_FALSE(ParseModelName("org/" + std::string(300, 'x')));
}

TEST(ModelNameTest, TheNamesOfCacheFolders) {
  EXPECT_EQ(CacheFolderOf("org/name"), "models--org--name");
  const std::string commit(40, 'a');
  EXPECT_EQ(CommitOfSnapshot("/c/models--org--name/snapshots/" + commit), commit);
  EXPECT_EQ(CommitOfSnapshot("/c/models--org--name/other/" + commit), "");
  EXPECT_EQ(CommitOfSnapshot("/c/snapshots/main"), "");
  EXPECT_TRUE(IsCommit(commit));
  EXPECT_FALSE(IsCommit(std::string(40, 'A')));
  EXPECT_FALSE(IsCommit(std::string(39, 'a')));
}

}  // namespace
}  // namespace sft::hub
