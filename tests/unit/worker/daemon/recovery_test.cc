// Faults that a worker survives without losing anything: its own death at any point, a disk that is
// full at any write, silence of the server, ranks that hang.

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/fault.h"
#include "tests/unit/worker/daemon/agent_fixture.h"
#include "worker/channel/flight_record.h"

namespace sft::worker {
namespace {

using RecoveryTest = AgentTest;

// Thrown to kill the worker.
struct Crash {};

TEST_F(RecoveryTest, ACrashAroundAnyServerCallLosesAndRepeatsNothing) {
  Want("ok", 2);
  Launch();
  agent_.reset();
  WaitForShimEnd();
  const std::string ended = dir_ + "/ended";
  std::filesystem::copy(setup_.data_dir, ended, std::filesystem::copy_options::recursive);
  int deaths = 0;
  for (const bool after : {false, true}) {
    bool died = true;
    for (int call = 1; died; ++call) {
      // Starts again from the point where the ranks have ended.
      agent_.reset();
      ASSERT_TRUE(io::RemoveAll(setup_.data_dir).ok());
      std::filesystem::copy(ended, setup_.data_dir, std::filesystem::copy_options::recursive);
      const auto blobs = server_.blobs;
      server_ = FakeServer();
      server_.blobs = blobs;
      died = false;
      const auto crash = [&](int n) {
        if (n != call || died) return;
        died = true;
        throw Crash{};
      };
      (after ? server_.after : server_.before) = crash;
      NewLife();
      for (int turn = 0; turn < 40 && Only().state() != Status::DONE; ++turn) {
        try {
          agent_->Step();
          agent_->StepIo();
        } catch (const Crash&) {
          NewLife();
        }
      }
      deaths += died ? 1 : 0;
      const std::string where = fmt::format("death {} call {}", after ? "after" : "before", call);
      ASSERT_EQ(Only().state(), Status::DONE) << where;
      EXPECT_EQ(Only().verdict().code(), "succeeded") << where;
      EXPECT_EQ(server_.commits.size(), 1u) << where;
      for (const int rank : {-1, 0, 1}) EXPECT_TRUE((server_.ended[{"a-1", rank}])) << where;
      for (const int rank : {0, 1}) {
        const std::string name = "/rank-" + std::to_string(rank) + ".log";
        EXPECT_EQ((server_.logs[{"a-1", rank}]), *io::ReadFile(setup_.AttemptDir("a-1") + name))
            << where;
      }
      int steps = 0;
      for (const v1::RankEvent& event : server_.events[0]) steps += event.has_metric() ? 1 : 0;
      EXPECT_EQ(steps, 3) << where;
    }
  }
  EXPECT_GE(deaths, 20) << "each call was tried";
}

TEST_F(RecoveryTest, ADiskFullAtAnyWriteIsReportedAndKeepsAcknowledgedData) {
  const std::string full_disk = "No space left on device";
  bool failed = true;
  int faults = 0;
  for (int write = 1; failed; ++write) {
    agent_.reset();
    ASSERT_TRUE(io::RemoveAll(setup_.data_dir).ok());
    server_ = FakeServer();
    desired_.clear_attempts();
    failed = false;
    NewLife();
    Want("ok");
    int writes = 0;
    io::SetWriteFault([&](std::string_view path) {
      if (++writes != write) return absl::OkStatus();
      failed = true;
      return ErrnoStatus(fmt::format("cannot write {}", path), ENOSPC);
    });
    Tell();
    for (int turn = 0; turn < 60 && Only().state() != Status::DONE; ++turn) {
      Tell();
      agent_->StepIo();
      if (Only().state() == Status::READY) {
        desired_.mutable_attempts(0)->set_rendezvous(Only().rendezvous());
        Tell();
      }
      if (Only().state() == Status::PREPARING) WaitForShimEnd();
    }
    io::SetWriteFault(nullptr);
    faults += failed ? 1 : 0;
    const Status status = Only();
    const std::string where = fmt::format("write {}: {}", write, status.verdict().message());
    ASSERT_EQ(status.state(), Status::DONE) << where;
    if (status.verdict().code() == "succeeded") {
      EXPECT_EQ(server_.commits.size(), 1u) << where;
    } else {
      EXPECT_EQ(status.verdict().code(), "disk_full") << where;
      EXPECT_EQ(status.verdict().domain(), v1::Verdict::INFRASTRUCTURE) << where;
      EXPECT_NE(status.verdict().message().find(full_disk), std::string::npos) << where;
      EXPECT_NE(status.verdict().advice().find("free space on node node-a"), std::string::npos);
      EXPECT_TRUE(server_.commits.empty()) << where;
    }
    // Space is back: it forgets this one and runs the next.
    desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::FORGET);
    Tell();
    EXPECT_EQ(Observe().attempts_size(), 0) << where;
    EXPECT_FALSE(io::Exists(setup_.AttemptDir("a-1"))) << where;
  }
  EXPECT_GE(faults, 8) << "each write was tried";
}

TEST_F(RecoveryTest, AShimWithoutRoomForItsFirstStatusIsNotTakenForGone) {
  const std::string gate = dir_ + "/gate";
  Want("until " + gate, 2);
  Launch();
  const channel::ShimStatus status = ShimStatus();
  const std::string path = setup_.AttemptDir("a-1") + "/status.json";
  const auto hide = [&] {
    ASSERT_TRUE(io::RemoveAll(path).ok());
    agent_->Step();
    EXPECT_LE(Only().state(), Status::RUNNING) << Only().reason();
  };
  hide();
  // A shim that does not answer is not restarted either: it may be starting, or stopped.
  ASSERT_EQ(kill(static_cast<pid_t>(status.shim_pid), SIGSTOP), 0);
  hide();
  ASSERT_EQ(kill(static_cast<pid_t>(status.shim_pid), SIGCONT), 0);
  Write(gate, "");
  ASSERT_EQ(waitpid(static_cast<pid_t>(status.shim_pid), nullptr, 0), status.shim_pid);
  agent_->Step();
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_EQ(Only().verdict().code(), "succeeded") << Only().verdict().message();
}

TEST_F(RecoveryTest, WhenReplacedTheRanksEndAndTheirFolderStays) {
  Want("steps " + dir_ + "/gate", 2);
  Launch();
  server_.failure = Unavailable("incarnation x was replaced");
  agent_->StopAll("another worker has taken this node over");
  const int calls = server_.calls;
  agent_->OnDesired(desired_);  // a message that was already in transit
  agent_->Step();
  WaitForShimEnd();
  agent_->Step();
  for (int turn = 0; turn < 5; ++turn) {
    agent_->StepIo();
    agent_->Step();
  }
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_EQ(server_.calls, calls) << "nobody takes what it would say";
  EXPECT_TRUE(io::IsDirectory(setup_.AttemptDir("a-1")));
  // The next incarnation reports what this one could not.
  NewLife();
  EXPECT_EQ(Only().state(), Status::FINISHING);
  server_.failure = absl::OkStatus();
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_TRUE((server_.ended[{"a-1", 1}]));
}

TEST_F(RecoveryTest, WhenReplacedStagingEnds) {
  Want("ok");
  server_.failure = Unavailable("incarnation x was replaced");
  Tell();
  agent_->StepIo();
  agent_->StopAll("another worker has taken this node over");
  agent_->Step();
  for (int turn = 0; turn < 3; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_EQ(Only().verdict().code(), "stopped");
}

TEST_F(RecoveryTest, HungRanksAreEndedWithTheFindingEvenAcrossARestart) {
  Want("steps " + dir_ + "/gate", 2);
  Launch();
  // The agent's clock is set to that of the ranks.
  clock_.Advance(Clock::Real().Mono() - clock_.Mono());
  const std::string flight = setup_.AttemptDir("a-1") + "/rank-1.flight";
  while (!channel::ReadFlightRecord(flight).ok() ||
         channel::ReadFlightRecord(flight)->steps_done < 2) {
    Clock::Real().Sleep(std::chrono::milliseconds(10));
  }
  int64_t stopped = 0;
  for (const auto& process : ShimStatus().processes) {
    if (process.rank == 1) stopped = process.pid;
  }
  kill(static_cast<pid_t>(stopped), SIGSTOP);
  const std::string stat = fmt::format("/proc/{}/stat", stopped);
  while (io::ReadFile(stat).value_or("").find(") T ") == std::string::npos) {
    Clock::Real().Sleep(std::chrono::milliseconds(1));  // wait for the signal to arrive
  }
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::RUNNING);
  clock_.Advance(std::chrono::minutes(11));
  agent_->Step();
  EXPECT_EQ(ShimStatus().state, "running") << "a single look after a pause decides nothing";
  for (int look = 0; look < 5; ++look) {
    clock_.Advance(std::chrono::seconds(1));
    agent_->Step();
  }
  EXPECT_EQ(ShimStatus().cause, "watch");
  NewLife();
  FinishAfterShim();
  const v1::Verdict verdict = Only().verdict();
  EXPECT_EQ(verdict.code(), "rank_hang") << verdict.message();
  EXPECT_EQ(verdict.rank(), 1);
  EXPECT_NE(verdict.message().find("rank 1 hangs: its process is stopped"), std::string::npos)
      << verdict.message();
  EXPECT_GE(verdict.evidence_size(), 2);
}

TEST_F(RecoveryTest, RanksAreEndedByTheirShimWhenTheServerIsSilentTooLong) {
  v1::Dispatch& dispatch = *Want("wait", 2).mutable_dispatch();
  auto job = ParseJson(dispatch.resolved_json());
  job["compute"]["unreachable_after"] = "1s";
  dispatch.set_resolved_json(DumpJson(job));
  Launch();  // then silence: the stream is cut, or this process is suspended
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "fenced");
  EXPECT_EQ(Only().verdict().domain(), v1::Verdict::INFRASTRUCTURE);
}

TEST_F(RecoveryTest, NothingStartsWhenTheServersLastMessageIsTooOld) {
  Want("wait");
  Tell();
  agent_->StepIo();
  desired_.mutable_attempts(0)->set_rendezvous(Only().rendezvous());
  agent_->OnDesired(desired_);
  clock_.Advance(std::chrono::minutes(15));
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::READY) << "the gang may run elsewhere by now";
  Tell();
  EXPECT_EQ(Only().state(), Status::PREPARING);
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
  Tell();
  FinishAfterShim();
}

TEST_F(RecoveryTest, AnAdoptedAttemptIsStoppedInEachOfItsStates) {
  Want("wait", 2);
  Launch();
  agent_->Step();
  NewLife();  // PREPARING or RUNNING
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
  Tell();
  NewLife();  // STOPPING
  Tell();
  WaitForShimEnd();
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::FINISHING);
  NewLife();
  EXPECT_EQ(Only().state(), Status::FINISHING);
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().verdict().code(), "stopped");
}

TEST_F(RecoveryTest, ARecordOfAnOlderWorkerLoadsWithTheJobItKnew) {
  Want("ok");
  Tell();
  agent_.reset();
  const std::string path = setup_.AttemptDir("a-1") + "/attempt.json";
  auto record = ParseJson(*io::ReadFile(path));
  for (const char* key : {"finding", "ended_us", "rank_uid", "rank_gid", "checkpoint_step",
                          "checkpoints_asked", "launched_ns", "oom_kills_before"}) {
    EXPECT_EQ(record.erase(key), 1u) << key;
  }
  auto job = ParseJson(record["dispatch"]["resolvedJson"].get<std::string>());
  job["compute"].erase("unreachable_after");
  job["compute"].erase("hang_timeout");
  job.erase("scheduling");
  record["dispatch"]["resolvedJson"] = DumpJson(job);
  Write(path, DumpJson(record));
  NewLife();
  Launch();
  const auto shim =
      channel::ParseShimLaunch(*io::ReadFile(setup_.AttemptDir("a-1") + "/shim.json"));
  EXPECT_EQ(shim->fencing_seconds, 900);
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "succeeded") << Only().verdict().message();
}

TEST_F(RecoveryTest, AJobOfANewerServerThatThisWorkerCannotReadIsTheNodesFault) {
  v1::Dispatch& dispatch = *Want("ok").mutable_dispatch();
  auto job = ParseJson(dispatch.resolved_json());
  job["compute"]["planet"] = "mars";
  dispatch.set_resolved_json(DumpJson(job));
  Tell();
  agent_->StepIo();
  EXPECT_EQ(Only().verdict().domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(Only().verdict().code(), "staging_failed");
  EXPECT_NE(Only().verdict().message().find("planet"), std::string::npos)
      << Only().verdict().message();
}

TEST_F(RecoveryTest, AnAttemptThatWasBeingStagedIsStagedAgain) {
  Want("ok");
  server_.failure = Unavailable("no server");
  Tell();
  agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::STAGING);
  NewLife();
  server_.failure = absl::OkStatus();
  Launch();
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "succeeded");
}

}  // namespace
}  // namespace sft::worker
