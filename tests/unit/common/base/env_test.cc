#include "common/base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace sft {
namespace {

TEST(GetEnvTest, TellsUnsetFromEmpty) {
  ASSERT_EQ(setenv("SFT_BASE_TEST_VARIABLE", "", 1), 0);
  EXPECT_EQ(GetEnv("SFT_BASE_TEST_VARIABLE"), std::optional<std::string>(""));
  ASSERT_EQ(setenv("SFT_BASE_TEST_VARIABLE", "a b", 1), 0);
  EXPECT_EQ(GetEnv("SFT_BASE_TEST_VARIABLE"), std::optional<std::string>("a b"));
  ASSERT_EQ(unsetenv("SFT_BASE_TEST_VARIABLE"), 0);
  EXPECT_EQ(GetEnv("SFT_BASE_TEST_VARIABLE"), std::nullopt);
}

TEST(EnvNamesWithTest, ListsSetVariablesInOrder) {
  ASSERT_EQ(setenv("SFT_NAMES_TEST_B", "1", 1), 0);
  ASSERT_EQ(setenv("SFT_NAMES_TEST_A", "", 1), 0);
  EXPECT_EQ(EnvNamesWith("SFT_NAMES_TEST_"),
            (std::vector<std::string>{"SFT_NAMES_TEST_A", "SFT_NAMES_TEST_B"}));
  ASSERT_EQ(unsetenv("SFT_NAMES_TEST_A"), 0);
  ASSERT_EQ(unsetenv("SFT_NAMES_TEST_B"), 0);
  EXPECT_TRUE(EnvNamesWith("SFT_NAMES_TEST_").empty());
}

}  // namespace
}  // namespace sft
