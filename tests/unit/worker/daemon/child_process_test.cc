#include "worker/daemon/child_process.h"

#include <gtest/gtest.h>

namespace sft::worker {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{20'000};

TEST(ChildProcessTest, OutputAndExitCodeComeBack) {
  const auto result = RunChild({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, {}, kLong);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output, "out\nerr\n");
  EXPECT_EQ(result->exit_code, 3);
}

TEST(ChildProcessTest, AnAddedVariableIsSeen) {
  EXPECT_EQ(RunChild({"/bin/sh", "-c", "echo $SFT_TEST"}, {"SFT_TEST=7"}, kLong)->output, "7\n");
}

TEST(ChildProcessTest, AnAddedVariableReplacesTheOneOfThisProcess) {
  const auto result = RunChild({"/usr/bin/env"}, {"PATH=/usr/bin:/sft-test"}, kLong);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NE(result->output.find("PATH=/usr/bin:/sft-test"), std::string::npos);
  const size_t first = result->output.find("\nPATH=");
  EXPECT_EQ(result->output.find("\nPATH=", first + 1), std::string::npos) << result->output;
}

TEST(ChildProcessTest, ASignalIsTold) {
  EXPECT_EQ(RunChild({"/bin/sh", "-c", "kill -9 $$"}, {}, kLong)->signal, 9);
}

TEST(ChildProcessTest, AProgramThatHangsIsKilledWithItsChildrenAtTheDeadline) {
  const auto result =
      RunChild({"/bin/sh", "-c", "cat /dev/zero > /dev/null & wait"}, {}, milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status())) << result.status();
}

TEST(ChildProcessTest, AMissingProgramIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(RunChild({"/nowhere/x"}, {}, kLong).status()));
}

}  // namespace
}  // namespace sft::worker
