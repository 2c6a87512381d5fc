#include "worker/base/child_process.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

#include "common/base/clock.h"
#include "common/io/file.h"
#include "worker/attempt/shim_client.h"
#include "worker/base/child_environment.h"
#include "worker/base/data_dir_lock.h"

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

TEST(ChildProcessTest, ASignalIsReported) {
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

TEST(ChildProcessTest, OnlyListedVariablesArePassedOn) {
  setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  setenv("NCCL_IB_HCA", "mlx5_0", 1);
  setenv("SITE_OWN", "wanted", 1);
  EXPECT_FALSE(IsPassedOn("AWS_SECRET_ACCESS_KEY"));
  PassOnToo({"SITE_OWN"});
  const std::string output = RunChild({"/usr/bin/env"}, {}, kLong)->output;
  EXPECT_EQ(output.find("secret"), std::string::npos) << output;
  EXPECT_NE(output.find("NCCL_IB_HCA=mlx5_0\n"), std::string::npos);
  EXPECT_NE(output.find("SITE_OWN=wanted\n"), std::string::npos);
  EXPECT_NE(output.find("PATH="), std::string::npos);
}

TEST(ChildProcessTest, SettingsOfTheRanksLibrariesArePassedOn) {
  for (const char* name : {"CUBLAS_WORKSPACE_CONFIG",
                           "CUBLASLT_LOG_LEVEL",
                           "CUDNN_LOGLEVEL_DBG",
                           "NVSHMEM_SYMMETRIC_SIZE",
                           "RDMAV_FORK_SAFE",
                           "IBV_FORK_SAFE",
                           "MLX4_POST_SEND_PREFER_BF",
                           "MLX5_SINGLE_THREADED",
                           "PSM2_CUDA",
                           "PSM3_NIC",
                           "PSM_DEVICES",
                           "HFI_UNIT",
                           "GLIBC_TUNABLES",
                           "MALLOC_ARENA_MAX",
                           "MALLOC_CONF",
                           "TSAN_OPTIONS",
                           "LSAN_OPTIONS",
                           "ASAN_OPTIONS",
                           "UBSAN_OPTIONS",
                           "SHARP_COLL_LOG_LEVEL",
                           "GDRCOPY_LOG_LEVEL",
                           "KINETO_LOG_LEVEL",
                           "TZDIR",
                           "LOCPATH"}) {
    EXPECT_TRUE(IsPassedOn(name)) << name;
  }
  for (const char* name :
       {"SFT_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN", "SSH_AUTH_SOCK", "PGPASSWORD", "MALLOCATOR_KEY", "PSMTP_PASSWORD"}) {
    EXPECT_FALSE(IsPassedOn(name)) << name;
  }
}

TEST(DataDirLockTest, ASecondWorkerIsToldWhichProcessHoldsTheFolder) {
  const std::string dir = *io::MakeTempDir("lock-test");
  FakeClock clock;
  {
    const auto held = LockDataDir(dir, clock);
    ASSERT_TRUE(held.ok());
    const absl::Status refused = LockDataDir(dir, clock).status();
    EXPECT_TRUE(absl::IsAlreadyExists(refused));
    EXPECT_NE(Message(refused).find(std::to_string(getpid())), std::string::npos) << refused;
  }
  EXPECT_TRUE(LockDataDir(dir, clock).ok());
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

// Ranks may put a program of theirs where their shim listens.
TEST(ShimClientTest, AnAnswerThatTricklesInTimesOut) {
  const std::string dir = *io::MakeTempDir("sft-shim-client-test");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir + "/sock";
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const io::UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  std::thread trickle([&] {
    const io::UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    for (int i = 0; i < 150 && send(fd.get(), " ", 1, MSG_NOSIGNAL) == 1; ++i) {
      Clock::Real().Sleep(milliseconds(100));
    }
  });
  const absl::Status asked = ShimProcesses("").Ask(path, {.command = "status"}).status();
  EXPECT_NE(asked.message().find("does not answer"), std::string::npos) << asked;
  trickle.join();
  EXPECT_TRUE(io::RemoveAll(dir).ok());
}

}  // namespace
}  // namespace sft::worker
