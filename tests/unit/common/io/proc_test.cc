#include "common/io/proc.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace sft::io {
namespace {

TEST(ProcTest, AProcessIsReadWhateverItsName) {
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  prctl(PR_SET_NAME, "a) Z 1 (b");
  const auto own = ReadProcessStat(getpid());
  prctl(PR_SET_NAME, name);
  ASSERT_TRUE(own.has_value());
  EXPECT_EQ(own->state, 'R');
  EXPECT_EQ(own->parent, getppid());
  EXPECT_GT(own->start_ticks, 0u);
}

TEST(ProcTest, AnEndedProcessIsAZombieUntilItIsReaped) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const auto ended = ReadProcessStat(child);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->state, 'Z');
  EXPECT_EQ(ended->parent, getpid());
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(ReadProcessStat(child).has_value());
}

}  // namespace
}  // namespace sft::io
