#include "worker/shim/supervisor.h"

#include <cerrno>

#include "common/io/fault.h"
#include "tests/unit/worker/shim/shim_harness.h"

namespace sft::shim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The supervisor inside the test, with a clock moved by hand.
class SupervisorTest : public ShimHarness {
 protected:
  void SetUp() override {
    ShimHarness::SetUp();
    sigemptyset(&child_signal_);
    sigaddset(&child_signal_, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_signal_, nullptr);
  }
  void ReapUntilFinished(Supervisor& supervisor) {
    while (!supervisor.Finished()) {
      int signal = 0;
      sigwait(&child_signal_, &signal);
      supervisor.Reap();
    }
  }

  sigset_t child_signal_;
  FakeClock clock_;
};

constexpr char kWait[] = "trap '' TERM; echo $$ > $MEET; while :; do read line; done";

TEST_F(SupervisorTest, RenewDefersTheFencingLimit) {
  launch_.fencing_seconds = 10;
  AddRank(kWait);
  Supervisor supervisor(launch_, clock_);
  supervisor.Start();
  Meet();
  clock_.Advance(seconds(9));
  supervisor.Handle({"renew", ""});
  clock_.Advance(seconds(9));
  supervisor.Tick();
  EXPECT_EQ(supervisor.Handle({"status", ""}).status.state, "running");
  EXPECT_EQ(supervisor.NextWake(), milliseconds(1000));
  clock_.Advance(seconds(1));
  supervisor.Tick();
  EXPECT_EQ(supervisor.Handle({"status", ""}).status.state, "stopping");
  clock_.Advance(seconds(20));
  supervisor.Tick();
  ReapUntilFinished(supervisor);
}

TEST_F(SupervisorTest, TheFencingLimitCountsFromTheMomentTheServerHeardOfTheWorker) {
  launch_.fencing_seconds = 10;
  launch_.fencing_age = 4;
  AddRank(kWait);
  Supervisor supervisor(launch_, clock_);
  supervisor.Start();
  Meet();
  EXPECT_EQ(supervisor.NextWake(), milliseconds(6000)) << "4 s had passed at the launch";
  clock_.Advance(seconds(5));
  supervisor.Handle({.command = "renew", .age = 3});
  EXPECT_EQ(supervisor.NextWake(), milliseconds(7000));
  supervisor.Handle({.command = "renew", .age = 9});
  EXPECT_EQ(supervisor.NextWake(), milliseconds(7000)) << "an older word changes nothing";
  clock_.Advance(seconds(7));
  supervisor.Tick();
  EXPECT_EQ(supervisor.Handle({"status", ""}).status.cause, "fencing");
  clock_.Advance(seconds(20));
  supervisor.Tick();
  ReapUntilFinished(supervisor);
}

TEST_F(SupervisorTest, ACauseOfTheWatchIsKept) {
  AddRank(kWait);
  Supervisor supervisor(launch_, clock_);
  supervisor.Start();
  Meet();
  supervisor.Handle({.command = "stop", .reason = "rank 0 hangs", .cause = "watch"});
  supervisor.Handle({.command = "stop", .reason = "cancelled"});
  clock_.Advance(seconds(20));
  supervisor.Tick();
  ReapUntilFinished(supervisor);
  EXPECT_EQ(Status().cause, "watch");
  EXPECT_EQ(Status().reason, "rank 0 hangs");
}

TEST_F(SupervisorTest, WithoutAFencingLimitNothingEnds) {
  AddRank(kWait);
  Supervisor supervisor(launch_, clock_);
  supervisor.Start();
  Meet();
  clock_.Advance(std::chrono::hours(24 * 365));
  supervisor.Tick();
  EXPECT_EQ(supervisor.Handle({"status", ""}).status.state, "running");
  supervisor.Stop("command", "end of test");
  clock_.Advance(seconds(20));
  supervisor.Tick();
  ReapUntilFinished(supervisor);
}

TEST_F(SupervisorTest, SigkillComesAfterTheGraceAndNotBefore) {
  launch_.grace_seconds = 5;
  AddRank(kWait);
  Supervisor supervisor(launch_, clock_);
  supervisor.Start();
  const pid_t rank = std::stoi(Meet());
  supervisor.Stop("command", "asked");
  clock_.Advance(milliseconds(4999));
  supervisor.Tick();
  EXPECT_EQ(supervisor.NextWake(), milliseconds(1));
  EXPECT_EQ(kill(rank, 0), 0);
  siginfo_t info{};
  EXPECT_EQ(waitid(P_PID, rank, &info, WEXITED | WNOHANG | WNOWAIT), 0);
  EXPECT_EQ(info.si_pid, 0) << "it was killed early";
  clock_.Advance(milliseconds(1));
  supervisor.Tick();
  ReapUntilFinished(supervisor);
  EXPECT_EQ(Status().processes[0].signal, SIGKILL);
}

TEST_F(SupervisorTest, TheFirstReasonToStopStays) {
  AddRank(kWait);
  Supervisor supervisor(launch_, clock_);
  supervisor.Start();
  Meet();
  supervisor.Stop("command", "first");
  supervisor.Stop("failure", "second");
  clock_.Advance(seconds(20));
  supervisor.Tick();
  ReapUntilFinished(supervisor);
  EXPECT_EQ(Status().reason, "first");
  EXPECT_EQ(Status().cause, "command");
}

TEST_F(SupervisorTest, ADiskFullAtAnyWriteDoesNotHideTheEnd) {
  AddRank("exit 64");
  bool failed = true;
  int faults = 0;
  for (int write = 1; failed; ++write) {
    failed = false;
    int writes = 0;
    io::SetWriteFault([&](std::string_view path) {
      if (++writes != write) return absl::OkStatus();
      failed = true;
      return ErrnoStatus("cannot write " + std::string(path), ENOSPC);
    });
    Supervisor supervisor(launch_, clock_);
    supervisor.Start();
    while (supervisor.Handle({"status", ""}).status.state != "exited") {
      int signal = 0;
      sigwait(&child_signal_, &signal);
      supervisor.Reap();
    }
    clock_.Advance(seconds(1));
    supervisor.Tick();
    io::SetWriteFault(nullptr);
    faults += failed ? 1 : 0;
    EXPECT_TRUE(supervisor.Finished()) << "write " << write;
    EXPECT_EQ(Status().state, "exited") << "write " << write;
    EXPECT_EQ(Status().processes[0].exit_code, 64) << "write " << write;
    ASSERT_TRUE(io::RemoveAll(dir_ + "/status.json").ok());
  }
  EXPECT_GE(faults, 6) << "each write was tried";
}

TEST_F(SupervisorTest, AStatusThatCannotBeWrittenIsWrittenLater) {
  AddRank("exit 0");
  // A folder in place of the status file: it cannot be replaced.
  ASSERT_EQ(mkdir((dir_ + "/status.json").c_str(), 0700), 0);
  Supervisor supervisor(launch_, clock_);
  supervisor.Start();
  while (supervisor.Handle({"status", ""}).status.state != "exited") {
    int signal = 0;
    sigwait(&child_signal_, &signal);
    supervisor.Reap();
  }
  EXPECT_FALSE(supervisor.Finished());
  ASSERT_EQ(rmdir((dir_ + "/status.json").c_str()), 0);
  clock_.Advance(seconds(1));
  supervisor.Tick();
  EXPECT_TRUE(supervisor.Finished());
  EXPECT_EQ(Status().state, "exited");
}

}  // namespace
}  // namespace sft::shim
