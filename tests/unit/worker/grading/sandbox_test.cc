#include "worker/grading/sandbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "common/base/clock.h"
#include "common/io/file.h"

namespace sft::grading {
namespace {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class SandboxTest : public testing::Test {
 protected:
  SandboxTest() : dir_(io::MakeTempDir("sandbox-test").value()) {
    confinement_.folder = dir_ + "/own";
    confinement_.roots = {dir_ + "/roots"};
    EXPECT_TRUE(io::MakeDirs(confinement_.folder).ok());
    EXPECT_TRUE(io::MakeDirs(dir_ + "/roots").ok());
    if (const absl::Status able = CheckConfinement(); !able.ok()) missing_ = able.ToString();
  }
  ~SandboxTest() override { (void)io::RemoveAll(dir_); }
  void SetUp() override {
    if (!missing_.empty()) GTEST_SKIP() << missing_;
  }

  // What a shell script says, or what went wrong.
  std::string Run(const std::string& script, std::string_view input = "") {
    const auto output = RunConfined({"/bin/sh", "-c", script}, input, confinement_, stop_);
    return output.ok() ? *output : "ERROR " + std::string(Message(output.status()));
  }

  const std::string dir_;
  std::string missing_;
  Confinement confinement_;
  std::atomic<bool> stop_ = false;
};

TEST_F(SandboxTest, AProgramReadsItsInputAndWritesItsOutput) {
  EXPECT_EQ(Run("cat", "one line\n"), "one line\n");
  const std::string large(300'000, 'x');
  EXPECT_EQ(Run("wc -c", large), "300000\n") << "nobody waits for the other";
  EXPECT_EQ(Run("echo a > file; cat file; pwd"), "a\n" + confinement_.folder + "\n");
  EXPECT_EQ(Run("cat /dev/stdin", "x"), "x");
}

TEST_F(SandboxTest, ItHasNoVariablesAndNoFilesOfThisProcess) {
  ASSERT_EQ(setenv("SFT_SECRET_OF_THE_TEST", "hidden", 1), 0);
  EXPECT_EQ(Run("env | sort | cut -d= -f1 | tr '\\n' ' '"), "HOME LANG PATH PWD TMPDIR ");
  const auto fd = io::OpenForRead("/etc/passwd").value();
  const std::string number = std::to_string(dup(fd.get()));  // without close-on-exec
  EXPECT_THAT(Run("cat <&" + number), HasSubstr("ERROR ended with exit code"));
}

TEST_F(SandboxTest, ItReachesNoNetworkNoOtherProcessAndNoOtherFile) {
  ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/secret", "hidden").ok());
  ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/roots/data", "open").ok());
  EXPECT_EQ(Run("cat " + dir_ + "/roots/data"), "open");
  EXPECT_THAT(Run("cat " + dir_ + "/secret"), HasSubstr("Permission denied"));
  EXPECT_THAT(Run("ls " + dir_), HasSubstr("Permission denied"));
  EXPECT_THAT(Run("cat /proc/1/environ"), HasSubstr("Permission denied"));
  EXPECT_THAT(Run("echo x > " + dir_ + "/roots/new"), HasSubstr("Permission denied"));
  EXPECT_THAT(Run("truncate -s 0 " + dir_ + "/secret"), HasSubstr("ERROR"));
  EXPECT_EQ(io::ReadFile(dir_ + "/secret").value(), "hidden");
  EXPECT_THAT(Run("kill -0 " + std::to_string(getpid())), HasSubstr("ERROR"));
  EXPECT_EQ(Run("echo $$"), "1\n") << "it sees itself alone";
  EXPECT_THAT(Run("exec 3<>/dev/tcp/127.0.0.1/1 || exec bash -c 'exec 3<>/dev/udp/1.1.1.1/53'"),
              HasSubstr("ERROR"));
}

// Sockets in the file system, by which shims and jobs that serve are asked.
TEST_F(SandboxTest, ItMakesNoSockets) {
  const std::string python =
      "exec python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"" + dir_ + "/s\")'";
  EXPECT_THAT(Run(python), AnyOf(HasSubstr("Permission denied"), HasSubstr("not found")));
}

TEST_F(SandboxTest, WhatTakesTooMuchIsKilledWhole) {
  confinement_.deadline = milliseconds(700);
  const MonoTime begin = Clock::Real().Mono();
  EXPECT_EQ(Run("sleep 100"), "ERROR took longer than 0.7 s");
  EXPECT_EQ(Run("trap '' TERM; setsid sleep 101 & sleep 101"), "ERROR took longer than 0.7 s");
  EXPECT_EQ(Run("exec >&- 2>&-; sleep 102"), "ERROR took longer than 0.7 s");
  EXPECT_EQ(Run("(sleep 103 >/dev/null 2>&1 &) ; echo done"), "done\n");
  EXPECT_LT(Clock::Real().Mono() - begin, std::chrono::seconds(60));
  EXPECT_NE(system("pgrep -f '^sleep 10[0-3]$' > /dev/null"), 0) << "one of them lives";
  EXPECT_THAT(Run("head -c 70000 /dev/zero"), HasSubstr("wrote more than 65536 bytes"));
  confinement_.deadline = milliseconds(20'000);
  confinement_.memory_bytes = int64_t{64} << 20;
  EXPECT_THAT(Run("x=$(head -c 200000000 /dev/zero | tr '\\0' 'a'); echo ${#x}"),
              HasSubstr("ERROR ended"));
  // The kernel does not count those of root.
  if (getuid() != 0) {
    EXPECT_THAT(Run("i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done"),
                HasSubstr("ERROR ended with exit code"));
  }
  confinement_.file_bytes = 1000;
  EXPECT_THAT(Run("head -c 5000 /dev/zero > file"), HasSubstr("ERROR"));
}

TEST_F(SandboxTest, HowItEndedIsSaid) {
  EXPECT_EQ(Run("echo one >&2; echo two >&2; exit 3"), "ERROR ended with exit code 3: two");
  EXPECT_EQ(Run("kill -SEGV $$; sleep 1; exit 4"), "ERROR ended with exit code 4")
      << "the first process of a namespace does not kill itself";
  const auto missing = RunConfined({"/no/such/program"}, "", confinement_, stop_);
  EXPECT_THAT(std::string(Message(missing.status())), HasSubstr("cannot start /no/such/program"));
}

TEST_F(SandboxTest, AStopEndsWhatRuns) {
  std::thread stopper([&] {
    Clock::Real().Sleep(milliseconds(200));
    stop_ = true;
  });
  const MonoTime begin = Clock::Real().Mono();
  const auto stopped = RunConfined({"/bin/sh", "-c", "sleep 9"}, "", confinement_, stop_);
  stopper.join();
  EXPECT_TRUE(absl::IsAborted(stopped.status())) << stopped.status();
  EXPECT_LT(Clock::Real().Mono() - begin, std::chrono::seconds(8));
}

}  // namespace
}  // namespace sft::grading
