#include "common/obs/open_file_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace sft::obs {
namespace {

TEST(OpenFileLimitTest, TheSoftLimitBecomesTheHardOne) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Lower than any machine's, and enough for what this process has open.
  const rlimit lowered{before.rlim_max < 64 ? before.rlim_max : 64, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
  RaiseOpenFileLimit();
  RaiseOpenFileLimit();  // nothing is left to raise
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace sft::obs
