#include "common/obs/log.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace sft::obs {
namespace {

TEST(LogTest, ForeignTextCannotBeginALineOrMoveTheCursor) {
  const auto before = spdlog::default_logger();
  ASSERT_TRUE(InitLogging({.process = "sft-test", .level = "info"}).ok());
  testing::internal::CaptureStderr();
  spdlog::warn("sending {}", "a\x1b[2J\nsft-server info: all is well \xe2\x80\xae \xff end");
  spdlog::default_logger()->flush();
  const std::string line = testing::internal::GetCapturedStderr();
  spdlog::set_default_logger(before);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  EXPECT_NE(line.find("sending a\\x1b[2J sft-server info: all is well \\x202e \\xff end\n"),
            line.npos)
      << line;
}

}  // namespace
}  // namespace sft::obs
