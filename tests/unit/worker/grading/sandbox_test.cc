#include "worker/grading/sandbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
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

  std::string RunPython(const std::string& script) {
    static constexpr char kPython[] = "/usr/bin/python3";
    if (access(kPython, X_OK) != 0) return "there is no /usr/bin/python3";
    const auto output = RunConfined({kPython, "-c", script}, "", confinement_, stop_);
    return output.ok() ? *output : "ERROR " + std::string(Message(output.status()));
  }

  // How many processes have this in their command line.
  static int Running(const std::string& text) {
    int found = 0;
    const auto names = io::ListDir("/proc");
    for (const std::string& name : names.value()) {
      if (name.find_first_not_of("0123456789") != name.npos || name == std::to_string(getpid())) {
        continue;
      }
      const auto line = io::ReadFile("/proc/" + name + "/cmdline");
      found += line.ok() && line->find(text) != line->npos ? 1 : 0;
    }
    return found;
  }

  const std::string dir_;
  // Ends the number of seconds that a test's programs sleep: nobody else's do.
  const std::string mark_ = "." + std::to_string(getpid()) + "07";
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
  EXPECT_THAT(Run("echo x > " + dir_ + "/roots/new"), HasSubstr("Read-only file system"));
  EXPECT_THAT(Run("truncate -s 0 " + dir_ + "/secret"), HasSubstr("ERROR"));
  EXPECT_EQ(io::ReadFile(dir_ + "/secret").value(), "hidden");
  EXPECT_THAT(Run("kill -0 " + std::to_string(getpid())), HasSubstr("ERROR"));
  EXPECT_EQ(Run("echo $$"), "1\n") << "it sees itself alone";
  EXPECT_THAT(Run("exec 3<>/dev/tcp/127.0.0.1/1 || exec bash -c 'exec 3<>/dev/udp/1.1.1.1/53'"),
              HasSubstr("ERROR"));
}

// Sockets in the file system, by which shims and jobs that serve are asked.
TEST_F(SandboxTest, ItMakesNoSockets) {
  EXPECT_THAT(RunPython("import socket; socket.socket(socket.AF_UNIX).connect('" + dir_ + "/s')"),
              HasSubstr("Permission denied"));
}

TEST_F(SandboxTest, ItReachesNoKeyRing) {
  for (const int call : {SYS_keyctl, SYS_add_key, SYS_request_key}) {
    EXPECT_EQ(RunPython("import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(" +
                        std::to_string(call) + ", 0, 0, 0, 0, 0), ctypes.get_errno())"),
              "-1 13\n")
        << call;
  }
}

// Neither through a path nor through a file that it may read.
TEST_F(SandboxTest, ItChangesNothingOfOtherFiles) {
  const std::string file = dir_ + "/roots/data";
  ASSERT_TRUE(io::WriteFileAtomic(file, "open").ok());
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  const auto changed = std::filesystem::last_write_time(file);
  for (const std::string change :
       {"os.chmod(f, 0o777)", "os.utime(f, (1, 1))", "os.chown(f, 0, 0)", "os.truncate(f, 0)",
        "os.setxattr(f, 'user.a', b'1')", "os.removexattr(f, 'user.a')", "os.unlink(f)",
        "os.fchmod(os.open(f, os.O_RDONLY), 0o777)", "os.utime(os.open(f, os.O_RDONLY), (1, 1))",
        "os.rename(f, f + '2')", "os.link(f, 'own')", "open(f, 'a')"}) {
    EXPECT_THAT(RunPython("import os; f = '" + file + "'; " + change), HasSubstr("ERROR"))
        << change;
  }
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644U);
  EXPECT_EQ(std::filesystem::last_write_time(file), changed);
  EXPECT_EQ(io::ReadFile(file).value(), "open");
  EXPECT_LT(getxattr(file.c_str(), "user.a", nullptr, 0), 0);
}

// A program may make namespaces in which it has all rights over what is made there.
TEST_F(SandboxTest, NamespacesOfItsOwnGiveItNothing) {
  const std::string file = dir_ + "/roots/data";
  ASSERT_TRUE(io::WriteFileAtomic(file, "open").ok());
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  const std::string script =
      "import ctypes, os\n"
      "libc = ctypes.CDLL(None, use_errno=True)\n"
      "print(libc.unshare(0x10000000 | 0x20000))\n"  // users and mounts
      "writable = (ctypes.c_uint64 * 4)(0, 1, 0, 0)\n"
      "print(libc.syscall(442, -100, b'/', 0x8000, ctypes.byref(writable), 32))\n"
      "print(libc.mount(b'', b'/', None, 32 | 4096, None), libc.umount(b'.'))\n"
      "try: os.chmod('" +
      file + "', 0o777)\nexcept OSError as error: print(error.strerror)\n";
  EXPECT_EQ(RunPython(script), "0\n-1\n-1 -1\nRead-only file system\n");
  struct stat info {};
  ASSERT_EQ(stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644U);
}

TEST_F(SandboxTest, InItsOwnFolderItDoesWhatProgramsDo) {
  EXPECT_EQ(Run("printf '#!/bin/sh\\necho made' > tool; chmod 755 tool; ./tool; "
                "mkdir sub; mv tool sub/tool; touch -d 2001-01-01 sub/tool; ./sub/tool"),
            "made\nmade\n");
  EXPECT_EQ(RunPython("import os; os.mkdir('sub'); open('a', 'w'); os.rename('a', 'sub/a'); "
                      "print(os.listdir('sub'))"),
            "['a']\n");
  EXPECT_EQ(Run("ls -A"), "") << "each program finds it empty";
  EXPECT_EQ(io::ListDir(confinement_.folder).value().size(), 0U) << "nothing reaches the disk";
}

TEST_F(SandboxTest, ItsFolderHoldsNoMoreThanItMay) {
  confinement_.folder_bytes = int64_t{1} << 20;
  EXPECT_THAT(Run("for i in 1 2 3; do head -c 400000 /dev/zero > $i || exit 9; done"),
              HasSubstr("No space left on device"));
  EXPECT_THAT(Run("exec 3>a 4>b 5>c; rm a b c; head -c 400000 /dev/zero >&3; "
                  "head -c 400000 /dev/zero >&4; head -c 400000 /dev/zero >&5"),
              HasSubstr("No space left on device"))
      << "files without a name count too";
}

TEST_F(SandboxTest, OfEtcItReadsWhatProgramsNeedAlone) {
  EXPECT_THAT(Run("cat /etc/passwd"), HasSubstr("root:"));
  EXPECT_THAT(Run("ls /etc"), HasSubstr("Permission denied"));
  EXPECT_THAT(Run("cat /etc/hostname"), HasSubstr("Permission denied"));
  EXPECT_THAT(Run("cat /etc/fstab"), HasSubstr("ERROR"));
}

TEST_F(SandboxTest, ItIsTheFirstToEndWhenMemoryIsShort) {
  confinement_.roots.push_back("/proc");
  EXPECT_EQ(RunPython("import os; print(open('/proc/self/oom_score_adj').read(), end='')"),
            "1000\n");
}

// It gives up what ties it to the process that started it.
TEST_F(SandboxTest, ADaemonIsKilledAtTheDeadlineToo) {
  FILE* const alive = popen(("exec sleep 3" + mark_).c_str(), "r");
  for (int i = 0; i < 100 && Running(mark_) == 0; ++i) Clock::Real().Sleep(milliseconds(20));
  EXPECT_EQ(Running(mark_), 1) << "what lives is found";
  pclose(alive);
  confinement_.deadline = milliseconds(700);
  const std::string daemon =
      "import ctypes, os, signal, time\n"
      "print(ctypes.CDLL(None).prctl(1, 0, 0, 0, 0), flush=True)\n"
      "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
      "try: os.setsid()\n"
      "except OSError: pass\n"
      "os.fork()\n"
      "while True: time.sleep(0.1) # " +
      dir_;
  EXPECT_EQ(RunPython(daemon), "ERROR took longer than 0.7 s");
  EXPECT_EQ(Running(dir_), 0);
  confinement_.deadline = milliseconds(10'000);
  EXPECT_EQ(RunPython("import ctypes; print(ctypes.CDLL(None).prctl(1, 0, 0, 0, 0))"), "-1\n");
}

TEST_F(SandboxTest, WhatTakesTooMuchIsKilledWhole) {
  confinement_.deadline = milliseconds(700);
  const MonoTime begin = Clock::Real().Mono();
  EXPECT_EQ(Run("sleep 100" + mark_), "ERROR took longer than 0.7 s");
  EXPECT_EQ(Run("trap '' TERM; setsid sleep 101" + mark_ + " & sleep 101" + mark_),
            "ERROR took longer than 0.7 s");
  EXPECT_EQ(Run("exec >&- 2>&-; sleep 102" + mark_), "ERROR took longer than 0.7 s");
  EXPECT_EQ(Run("(sleep 103" + mark_ + " >/dev/null 2>&1 &) ; echo done"), "done\n");
  EXPECT_LT(Clock::Real().Mono() - begin, std::chrono::seconds(60));
  EXPECT_EQ(Running(mark_), 0) << "one of them lives";
  EXPECT_THAT(Run("head -c 70000 /dev/zero"), HasSubstr("wrote more than 65536 bytes"));
  confinement_.deadline = milliseconds(20'000);
  confinement_.memory_bytes = int64_t{64} << 20;
  EXPECT_THAT(Run("x=$(head -c 200000000 /dev/zero | tr '\\0' 'a'); echo ${#x}"),
              AnyOf(HasSubstr("ERROR ended"), HasSubstr("ERROR was ended by signal")));
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
  EXPECT_THAT(std::string(Message(missing.status())), HasSubstr("cannot be started: "));
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
