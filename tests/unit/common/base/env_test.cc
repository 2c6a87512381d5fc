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

}  // namespace
}  // namespace sft
