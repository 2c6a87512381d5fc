// Tests of the sft-shim program with real, short processes.

#include <chrono>

#include "tests/unit/worker/shim/shim_harness.h"

namespace sft::shim {
namespace {

using ShimTest = ShimHarness;

constexpr char kWaitForStop[] = "echo $$ > $MEET; read line; echo \"got $line\"; exit 67";
// Ignores SIGTERM and the command: only SIGKILL ends it.
constexpr char kStubborn[] = "trap '' TERM; echo $$ > $MEET; while :; do read line; done";

TEST_F(ShimTest, RunsPrepareToItsEndAndThenAllRanks) {
  SetPrepare("echo prepared; echo yes > prepared");
  AddRank("cat prepared; echo rank 0 >&2");
  AddRank("cat prepared; echo rank 1");
  ASSERT_EQ(StartShim(), 0);
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.state, "exited");
  EXPECT_EQ(status.reason, "");
  EXPECT_EQ(status.epoch, 3);
  ASSERT_EQ(status.processes.size(), 3u);
  for (const auto& process : status.processes) {
    EXPECT_TRUE(process.exited && process.exit_code == 0 && process.signal == 0) << process.name;
  }
  EXPECT_EQ(Read("prepare.log"), "prepared\n");
  EXPECT_EQ(Read("rank-0.log"), "yes\nrank 0\n");
  EXPECT_EQ(Read("rank-1.log"), "yes\nrank 1\n");
  EXPECT_FALSE(io::Exists(launch_.socket_path)) << "the socket goes with the shim";
}

TEST_F(ShimTest, PrepareThatFailsEndsTheAttemptBeforeAnyRankStarts) {
  SetPrepare("echo line 7 is not JSON; exit 64");
  AddRank("touch started");
  ASSERT_EQ(StartShim(), 0);
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.reason, "prepare failed with exit code 64");
  ASSERT_EQ(status.processes.size(), 1u);
  EXPECT_EQ(status.processes[0].exit_code, 64);
  EXPECT_FALSE(io::Exists(dir_ + "/started"));
}

TEST_F(ShimTest, TheFirstRankToFailEndsTheGang) {
  AddRank(kWaitForStop);
  AddRank("echo ready > $MEET; exit 65");
  launch_.ranks[0].env["MEET"] = dir_ + "/meet0";
  ASSERT_EQ(mkfifo((dir_ + "/meet0").c_str(), 0600), 0);
  ASSERT_EQ(StartShim(), 0);
  std::ifstream rank0(dir_ + "/meet0");  // now it waits for commands
  std::string line;
  std::getline(rank0, line);
  Meet();  // now rank 1 fails
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.reason, "rank 1 failed with exit code 65");
  EXPECT_EQ(status.processes[1].order, 1);
  EXPECT_EQ(status.processes[0].order, 2);
  EXPECT_TRUE(status.processes[0].signal == SIGTERM || status.processes[0].exit_code == 67);
}

TEST_F(ShimTest, ARankKilledByASignalIsNamedWithTheSignal) {
  AddRank("kill -9 $$");
  ASSERT_EQ(StartShim(), 0);
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.reason, "rank 0 was killed by signal 9 (Killed)");
  EXPECT_EQ(status.processes[0].signal, 9);
}

TEST_F(ShimTest, StopReachesTheRanksAsACommandAndASignal) {
  AddRank(
      "trap 'echo term; exit 67' TERM; echo ready > $MEET; while :; do read line; echo \"$line\"; "
      "done");
  ASSERT_EQ(StartShim(), 0);
  Meet();
  const channel::Answer answer = Send(channel::Command{"stop", "cancelled by its owner"});
  EXPECT_TRUE(answer.ok);
  EXPECT_EQ(answer.status.state, "stopping");
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.reason, "cancelled by its owner");
  EXPECT_EQ(status.processes[0].exit_code, 67);
  EXPECT_NE(Read("rank-0.log").find("term"), std::string::npos);
}

TEST_F(ShimTest, CheckpointIsPassedToTheRanks) {
  AddRank("echo ready > $MEET; read line; echo \"$line\"");
  ASSERT_EQ(StartShim(), 0);
  Meet();
  EXPECT_TRUE(Send(channel::Command{"checkpoint", ""}).ok);
  WaitForEnd();
  EXPECT_EQ(channel::ParseCommand(Read("rank-0.log"))->command, "checkpoint");
}

TEST_F(ShimTest, ARankThatIgnoresSigtermIsKilledAfterTheGrace) {
  launch_.grace_seconds = 0.1;
  AddRank(kStubborn);
  ASSERT_EQ(StartShim(), 0);
  const pid_t rank = std::stoi(Meet());
  Send(channel::Command{"stop", "now"});
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.processes[0].signal, SIGKILL);
  EXPECT_EQ(kill(rank, 0), -1);
}

TEST_F(ShimTest, ASignalThatTheWorkerIgnoresEndsNeitherShimNorRanks) {
  AddRank("echo $$ > $MEET; read line; echo \"$line\"");
  signal(SIGTERM, SIG_IGN);
  ASSERT_EQ(StartShim(), 0);
  signal(SIGTERM, SIG_DFL);
  const pid_t rank = std::stoi(Meet());
  const pid_t shim = Send(channel::Command{"status", ""}).status.shim_pid;
  for (const pid_t pid : {rank, shim}) EXPECT_EQ(kill(pid, SIGTERM), 0);
  EXPECT_EQ(Send(channel::Command{"status", ""}).status.state, "running");
  EXPECT_TRUE(Send(channel::Command{"checkpoint", ""}).ok);
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.reason, "");
  EXPECT_EQ(status.processes[0].signal, 0);
  EXPECT_EQ(channel::ParseCommand(Read("rank-0.log"))->command, "checkpoint");
}

TEST_F(ShimTest, ProcessesThatLeftTheGroupAreEndedToo) {
  launch_.grace_seconds = 0.1;
  // A grandchild in its own session that ignores SIGTERM; its parent ends as soon as it does.
  AddRank(
      "setsid sh -c \"trap '' TERM; echo \\$\\$ > $MEET; read line < $MEET\" & "
      "read pid < $MEET; echo $pid > orphan; exit 0");
  ASSERT_EQ(StartShim(), 0);
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.state, "exited");
  EXPECT_EQ(status.reason, "");
  EXPECT_EQ(status.processes[0].exit_code, 0);
  EXPECT_EQ(kill(std::stoi(Read("orphan")), 0), -1) << "the orphan is still there";
}

TEST_F(ShimTest, TheFencingLimitEndsTheRanks) {
  launch_.fencing_seconds = 0.1;
  launch_.grace_seconds = 0.1;
  AddRank(kStubborn);
  ASSERT_EQ(StartShim(), 0);
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.reason, "no word from the worker for 0.1 s: fencing limit");
}

TEST_F(ShimTest, AProgramThatIsMissingIsSaidInItsLogAndCountsAsInfrastructure) {
  AddRank("true");
  launch_.ranks[0].argv = {"/nowhere/sft-rank", "train"};
  ASSERT_EQ(StartShim(), 0);
  EXPECT_EQ(WaitForEnd().processes[0].exit_code, channel::kExitInfrastructure);
  EXPECT_EQ(Read("rank-0.log"), "cannot run /nowhere/sft-rank: No such file or directory\n");
}

TEST_F(ShimTest, ALogThatCannotBeMadeEndsTheAttemptWithTheReason) {
  AddRank("true");
  ASSERT_EQ(mkdir((dir_ + "/rank-0.log").c_str(), 0700), 0);
  ASSERT_EQ(StartShim(), 0);
  const channel::ShimStatus status = WaitForEnd();
  EXPECT_EQ(status.processes[0].exit_code, channel::kExitInfrastructure);
  EXPECT_NE(status.reason.find("rank-0 did not start: cannot open"), std::string::npos)
      << status.reason;
}

TEST_F(ShimTest, TheSameAttemptIsNeverStartedTwice) {
  AddRank(kWaitForStop);
  ASSERT_EQ(StartShim(), 0);
  Meet();
  EXPECT_EQ(StartShim(), channel::kExitAlreadyRuns) << "its shim lives";
  EXPECT_EQ(Send(channel::Command{"status", ""}).status.state, "running")
      << "and was not disturbed";
  Send(channel::Command{"stop", ""});
  EXPECT_EQ(WaitForEnd().reason, "stop requested");
  EXPECT_EQ(StartShim(), channel::kExitAlreadyRuns) << "it has ended";
}

TEST_F(ShimTest, HostileTextOnTheSocketIsAnsweredOrDroppedAndChangesNothing) {
  AddRank(kWaitForStop);
  ASSERT_EQ(StartShim(), 0);
  Meet();
  EXPECT_NE(Send(std::string("{\"command\":\n")).find("not valid JSON"), std::string::npos);
  EXPECT_NE(Send(std::string("{\"command\":\"dance\"}\n")).find("unknown command"),
            std::string::npos);
  EXPECT_EQ(Send(std::string(5000, 'x')), "") << "a line that is too long";
  std::vector<io::UniqueFd> idle;
  for (int i = 0; i < 40; ++i) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strcpy(address.sun_path, launch_.socket_path.c_str());
    idle.emplace_back(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(connect(idle.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              0);
  }
  EXPECT_EQ(Send(channel::Command{"status", ""}).status.state, "running");
  Send(channel::Command{"stop", ""});
  WaitForEnd();
}

TEST_F(ShimTest, TheRanksDieWithTheShim) {
  AddRank(kStubborn);
  ASSERT_EQ(StartShim(), 0);
  const pid_t rank = std::stoi(Meet());
  const pid_t shim = static_cast<pid_t>(Status().shim_pid);
  kill(shim, SIGKILL);
  ASSERT_EQ(waitpid(shim, nullptr, 0), shim);
  int status = 0;
  ASSERT_EQ(waitpid(rank, &status, 0), rank);  // this process is the next subreaper
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  EXPECT_EQ(Status().state, "running") << "no one was left to write the end";
}

TEST_F(ShimTest, WrongArgumentsAndABrokenLaunchFileAreUsageErrors) {
  launch_.socket_path = "/" + std::string(200, 'x');
  AddRank("true");
  EXPECT_EQ(StartShim(), channel::kExitUsage);
}

TEST_F(ShimTest, HelpPrintsUsageAndSucceeds) {
  FILE* output = popen(SFT_BINARY_DIR "/bin/sft-shim --help", "r");
  ASSERT_NE(output, nullptr);
  std::string text(4096, '\0');
  text.resize(fread(text.data(), 1, text.size(), output));
  EXPECT_EQ(pclose(output), 0);
  EXPECT_NE(text.find("usage: sft-shim --launch FILE"), std::string::npos) << text;
}

TEST_F(ShimTest, StaysBelowFifteenMegabytes) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's shadow memory counts too";
#endif
  AddRank(kWaitForStop);
  ASSERT_EQ(StartShim(), 0);
  Meet();
  std::ifstream statm("/proc/" + std::to_string(Status().shim_pid) + "/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  EXPECT_GT(resident, 0);
  EXPECT_LT(resident * sysconf(_SC_PAGESIZE), 15'000'000);
  Send(channel::Command{"stop", ""});
  WaitForEnd();
}

}  // namespace
}  // namespace sft::shim
