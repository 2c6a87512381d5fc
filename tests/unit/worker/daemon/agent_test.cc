#include "worker/daemon/agent.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "common/io/fault.h"
#include "common/io/flight_record.h"
#include "common/io/sha256.h"
#include "tests/unit/worker/daemon/fake_server.h"
#include "tests/unit/worker/daemon/test_node.h"
#include "worker/channel/launch.h"

namespace sft::worker {
namespace {

using Status = v1::AttemptStatus;

// A node with the real shim and a stand-in for the rank program; the test takes each step itself.
// Shims become children of the test, so that their end is waited for, not looked for.
class AgentTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    setup_.grace_seconds = 0.2;
    NewLife();
  }
  void TearDown() override {
    agent_.reset();
    TestNode::TearDown();
  }

  // As if the daemon had been killed and started again.
  void NewLife() {
    agent_.reset();
    inventory_ = std::make_unique<Inventory>(
        [this] { return gpus_; }, gpus_.empty() ? SimulatedGpus{"H100", 4} : SimulatedGpus{}, 0,
        clock_);
    agent_ =
        std::make_unique<Agent>(Agent::Options{.io_threads = false}, setup_, stager_, *inventory_,
                                server_, shims_, clock_, [this] { return torch_; });
    ASSERT_TRUE(agent_->Load().ok());
  }

  // `mode` is the stand-in's.
  v1::DesiredAttempt& Want(const std::string& mode, int ranks = 1) {
    const std::string data = "{\"text\":\"fake:" + mode + "\"}\n";
    const std::string hash = io::Sha256Hex(data);
    server_.blobs[hash] = data;
    v1::DesiredAttempt& wanted = *desired_.add_attempts();
    wanted.set_attempt_uid("a-1");
    wanted.set_epoch(1);
    wanted.set_intent(v1::DesiredAttempt::RUN);
    v1::Dispatch& dispatch = *wanted.mutable_dispatch();
    dispatch.set_job_id("job-1");
    dispatch.set_resolved_json(ResolvedJson("tiny"));
    dispatch.set_world_size(ranks);
    for (int i = 0; i < ranks; ++i) dispatch.add_slots(i);
    v1::JobFileRef& file = *dispatch.add_files();
    file.set_key("job.data");
    file.set_sha256(hash);
    file.set_size(static_cast<int64_t>(data.size()));
    return wanted;
  }
  void Tell() {
    agent_->ServerHeard(clock_.Mono());
    agent_->OnDesired(desired_);
    agent_->Step();
  }
  v1::Observed Observe() {
    uint64_t models = 0;
    return agent_->Observe(models);
  }
  Status Only() {
    const v1::Observed observed = Observe();
    EXPECT_EQ(observed.attempts_size(), 1);
    return observed.attempts_size() == 1 ? observed.attempts(0) : Status();
  }
  // To the point where the shim runs.
  void Launch() {
    Tell();
    agent_->StepIo();
    ASSERT_EQ(Only().state(), Status::READY) << Only().reason();
    desired_.mutable_attempts(0)->set_rendezvous(Only().rendezvous());
    Tell();
    ASSERT_EQ(Only().state(), Status::PREPARING) << Only().reason();
  }
  channel::ShimStatus ShimStatus() {
    return *channel::ParseShimStatus(*io::ReadFile(setup_.AttemptDir("a-1") + "/status.json"));
  }
  void WaitForShimEnd() {
    const pid_t pid = static_cast<pid_t>(ShimStatus().shim_pid);
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  }
  void FinishAfterShim() {
    WaitForShimEnd();
    agent_->Step();
    for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
    ASSERT_EQ(Only().state(), Status::DONE) << Only().reason();
  }

  FakeClock clock_;
  FakeServer server_;
  Stager stager_{setup_, server_};
  ShimProcesses shims_{SFT_BINARY_DIR "/bin/sft-shim"};
  std::unique_ptr<Inventory> inventory_;
  std::vector<GpuReading> gpus_;  // empty: pretended ones
  absl::StatusOr<std::string> torch_ = std::string();
  std::unique_ptr<Agent> agent_;
  v1::Desired desired_;
};

TEST_F(AgentTest, AnAttemptGoesFromItsDispatchToAnAcknowledgedArtifact) {
  Want("ok", 2);
  Launch();
  EXPECT_NE(Only().rendezvous(), "");
  FinishAfterShim();
  const Status status = Only();
  EXPECT_EQ(status.verdict().code(), "succeeded") << status.verdict().message();
  EXPECT_EQ(status.progress().step(), 3);
  EXPECT_EQ(status.progress().total_steps(), 3);
  EXPECT_EQ((server_.logs[{"a-1", 1}]).substr(0, 11), "rank 1 of 2");
  EXPECT_TRUE((server_.ended[{"a-1", -1}]));
  EXPECT_TRUE((server_.ended[{"a-1", 0}]));
  EXPECT_TRUE((server_.ended[{"a-1", 1}]));
  ASSERT_EQ(server_.commits.size(), 1u);
  EXPECT_EQ(server_.commits[0].files_size(), 2);
  EXPECT_EQ(server_.uploaded.size(), 2u);

  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::FORGET);
  Tell();
  EXPECT_EQ(Observe().attempts_size(), 0);
  EXPECT_FALSE(io::Exists(setup_.AttemptDir("a-1")));
  EXPECT_TRUE(io::Exists(setup_.data_dir + "/datasets")) << "data sets are kept";
}

TEST_F(AgentTest, WithoutADispatchItAsksForOne) {
  Want("ok").clear_dispatch();
  Tell();
  EXPECT_EQ(Only().state(), Status::MISSING);
  EXPECT_EQ(Only().epoch(), 1);
}

TEST_F(AgentTest, AStopOfWhatItDoesNotHaveIsAnsweredWithMissing) {
  Want("ok").set_intent(v1::DesiredAttempt::STOP);
  Tell();
  EXPECT_EQ(Only().state(), Status::MISSING) << "nothing is started for a stop";
}

TEST_F(AgentTest, NothingStartsBeforeTheRendezvousIsKnown) {
  Want("ok").mutable_dispatch()->set_first_rank(1);
  desired_.mutable_attempts(0)->mutable_dispatch()->set_world_size(2);
  Tell();
  agent_->StepIo();
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::READY);
  EXPECT_EQ(Only().rendezvous(), "") << "rank 0's node chooses it";
  EXPECT_FALSE(io::Exists(setup_.AttemptDir("a-1") + "/status.json"));
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
  Tell();
  agent_->StepIo();
  EXPECT_EQ(Only().verdict().code(), "stopped");
}

TEST_F(AgentTest, AStopEndsTheRanks) {
  Want("wait", 2);
  Launch();
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
  desired_.mutable_attempts(0)->set_reason("cancelled by ann");
  Tell();
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "stopped");
  EXPECT_EQ(Only().verdict().message(), "cancelled by ann");
  EXPECT_TRUE(server_.commits.empty());
}

TEST_F(AgentTest, ANewLifeOfTheWorkerFindsTheShimAndFinishesTheAttempt) {
  const std::string gate = dir_ + "/gate";
  Want("until " + gate);
  Launch();
  const int64_t shim = ShimStatus().shim_pid;
  NewLife();
  Tell();
  EXPECT_EQ(ShimStatus().shim_pid, shim) << "no second one";
  EXPECT_GE(Only().state(), Status::PREPARING);
  Write(gate, "");
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "succeeded") << Only().verdict().message();
  EXPECT_EQ(server_.commits.size(), 1u);
}

TEST_F(AgentTest, AnAttemptThatEndedWhileTheWorkerWasDownIsReported) {
  Want("ok");
  Launch();
  agent_.reset();
  WaitForShimEnd();
  NewLife();
  agent_->Step();
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().verdict().code(), "succeeded");
  NewLife();
  EXPECT_EQ(Only().state(), Status::DONE) << "and it is not done a second time";
  EXPECT_EQ(server_.commits.size(), 1u);
}

// The worker dies.
struct Crash {};

TEST_F(AgentTest, ItMayDieBeforeOrAfterAnyCallToTheServerAndNothingIsLostOrDoubled) {
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
      // Once more from the point where the ranks have ended.
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

TEST_F(AgentTest, ADiskThatIsFullAtAnyWriteIsToldAndWhatWasAcknowledgedIsWhole) {
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

TEST_F(AgentTest, RanksThatStandStillAreEndedWithTheFindingAlsoOverANewLife) {
  Want("steps " + dir_ + "/gate", 2);
  Launch();
  // The agent's clock shows what the ranks' shows.
  clock_.Advance(Clock::Real().Mono() - clock_.Mono());
  const std::string flight = setup_.AttemptDir("a-1") + "/rank-1.flight";
  while (!io::ReadFlightRecord(flight).ok() || io::ReadFlightRecord(flight)->steps_done < 2) {
    Clock::Real().Sleep(std::chrono::milliseconds(10));
  }
  int64_t stopped = 0;
  for (const auto& process : ShimStatus().processes) {
    if (process.rank == 1) stopped = process.pid;
  }
  kill(static_cast<pid_t>(stopped), SIGSTOP);
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

TEST_F(AgentTest, ARankThatTheServerDoesNotHearOfForTooLongIsEndedByItsShim) {
  setup_.unreachable_after = std::chrono::milliseconds(300);
  NewLife();
  Want("wait", 2);
  Launch();  // and then not a word: the stream is cut, or this process is stopped
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "fenced");
  EXPECT_EQ(Only().verdict().domain(), v1::Verdict::INFRASTRUCTURE);
}

TEST_F(AgentTest, NothingStartsWhenTheServersLastWordIsTooOld) {
  Want("wait");
  Tell();
  agent_->StepIo();
  desired_.mutable_attempts(0)->set_rendezvous(Only().rendezvous());
  agent_->OnDesired(desired_);
  clock_.Advance(setup_.unreachable_after);
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::READY) << "the gang may run elsewhere by now";
  Tell();
  EXPECT_EQ(Only().state(), Status::PREPARING);
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
  Tell();
  FinishAfterShim();
}

TEST_F(AgentTest, AnAdoptedAttemptIsStoppedInEachOfItsStates) {
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

TEST_F(AgentTest, AnAttemptThatWasBeingStagedIsStagedAgain) {
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

TEST_F(AgentTest, ADeadShimIsAnInfrastructureFailure) {
  Want("wait");
  Launch();
  const pid_t shim = static_cast<pid_t>(ShimStatus().shim_pid);
  kill(shim, SIGKILL);
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "shim_lost");
  EXPECT_EQ(Only().verdict().domain(), v1::Verdict::INFRASTRUCTURE);
}

TEST_F(AgentTest, WhatTheServerDoesNotKnowIsStoppedAndDeleted) {
  Want("wait");
  Launch();
  desired_.clear_attempts();
  Tell();
  WaitForShimEnd();
  agent_->Step();
  agent_->StepIo();
  agent_->Step();
  EXPECT_EQ(Observe().attempts_size(), 0);
  EXPECT_FALSE(io::Exists(setup_.AttemptDir("a-1")));
}

TEST_F(AgentTest, BeforeTheServerHasSpokenNothingIsStopped) {
  const std::string gate = dir_ + "/gate";
  Want("until " + gate);
  Launch();
  NewLife();
  agent_->Step();
  agent_->StepIo();
  agent_->Step();
  EXPECT_EQ(Observe().attempts_size(), 1);
  Write(gate, "");
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "succeeded");
}

TEST_F(AgentTest, AnotherEpochIsAnotherAttempt) {
  Want("wait");
  Launch();
  desired_.mutable_attempts(0)->set_epoch(2);
  Tell();
  WaitForShimEnd();
  agent_->Step();
  agent_->StepIo();
  agent_->Step();
  const Status status = Only();
  EXPECT_EQ(status.state(), Status::MISSING);
  EXPECT_EQ(status.epoch(), 2);
}

TEST_F(AgentTest, DataThatPrepareRefusesIsTheUsersError) {
  Want("user_error");
  Launch();
  FinishAfterShim();
  const v1::Verdict verdict = Only().verdict();
  EXPECT_EQ(verdict.domain(), v1::Verdict::USER);
  EXPECT_EQ(verdict.code(), "bad_data");
  EXPECT_EQ(verdict.message(), "prepare: line 1: nothing to learn");
  EXPECT_EQ(verdict.advice(), "add an answer");
}

TEST_F(AgentTest, ARankThatIsKilledIsBlamedAndEndsTheOthers) {
  Want("rank_killed", 3);
  Launch();
  FinishAfterShim();
  const v1::Verdict verdict = Only().verdict();
  EXPECT_EQ(verdict.rank(), 2);
  EXPECT_EQ(verdict.message(), "rank 2 was killed by signal 9 (Killed)");
  EXPECT_EQ(verdict.domain(), v1::Verdict::INFRASTRUCTURE);
}

TEST_F(AgentTest, AModelThatCannotBeUsedFailsBeforeAnythingStarts) {
  ASSERT_TRUE(io::RemoveAll(dir_ + "/models/tiny/tokenizer.json").ok());
  Want("ok");
  Tell();
  agent_->StepIo();
  agent_->StepIo();
  const Status status = Only();
  EXPECT_EQ(status.state(), Status::DONE);
  EXPECT_EQ(status.verdict().domain(), v1::Verdict::USER);
  EXPECT_NE(status.verdict().message().find("tokenizer.json is missing"), std::string::npos);
  EXPECT_TRUE((server_.ended[{"a-1", 0}])) << "its empty log has an end";
}

TEST_F(AgentTest, WithoutTorchItSaysSoAndBlamesTheNode) {
  torch_ = NotFound("ranks cannot start: give --torch DIR");
  Want("ok");
  Tell();
  agent_->StepIo();
  EXPECT_EQ(Only().verdict().domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_NE(Only().verdict().message().find("--torch DIR"), std::string::npos);
}

TEST_F(AgentTest, AGpuIsFreeOnlyWhenItsMemoryIsSeenBack) {
  gpus_ = {{"NVIDIA H100", "GPU-a", 80'000'000'000, 500'000'000, 0}};
  NewLife();
  int asked = 0;
  inventory_->SetWaker([&] { ++asked; });
  Want("ok");
  Launch();
  WaitForShimEnd();
  agent_->Step();
  EXPECT_LT(Only().state(), Status::STOPPING) << "no reading is newer than the end";
  EXPECT_EQ(asked, 1);
  gpus_[0].memory_used_bytes = 40'000'000'000;
  clock_.Advance(std::chrono::seconds(1));
  inventory_->Refresh();
  agent_->Step();
  EXPECT_NE(Only().reason().find("GPU 0 still holds 40.0 GB"), std::string::npos)
      << Only().reason();
  EXPECT_FALSE(Only().stuck());
  clock_.Advance(std::chrono::seconds(30));
  agent_->Step();
  EXPECT_TRUE(Only().stuck());
  gpus_[0].memory_used_bytes = 600'000'000;
  inventory_->Refresh();
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::FINISHING);
  EXPECT_FALSE(Only().stuck());
  EXPECT_EQ(Only().verdict().code(), "succeeded");
}

TEST_F(AgentTest, AnUnreachableServerDoesNotEndAnything) {
  Want("ok");
  Launch();
  server_.failure = Unavailable("no server");
  WaitForShimEnd();
  agent_->Step();
  for (int turn = 0; turn < 5; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::FINISHING);
  server_.failure = absl::OkStatus();
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_EQ(server_.commits.size(), 1u);
}

TEST_F(AgentTest, AServerThatDisownsTheAttemptIsNotWaitedFor) {
  Want("ok");
  Launch();
  server_.failure = FailedPrecondition("old epoch");
  FinishAfterShim();
  EXPECT_TRUE(server_.commits.empty());
}

TEST_F(AgentTest, AnIdThatIsAPathIsIgnored) {
  Want("ok").set_attempt_uid("../../evil");
  Tell();
  EXPECT_EQ(Observe().attempts_size(), 0);
}

TEST_F(AgentTest, ARecordThatCannotBeReadStopsTheStartInsteadOfForgettingRanks) {
  Write(setup_.data_dir + "/attempts/a-9/attempt.json", "{\"attempt_uid\":\"a-9\"}");
  agent_ = std::make_unique<Agent>(Agent::Options{.io_threads = false}, setup_, stager_,
                                   *inventory_, server_, shims_, clock_, [this] { return torch_; });
  EXPECT_TRUE(absl::IsInvalidArgument(agent_->Load()));
}

TEST_F(AgentTest, ModelsAreReportedWhenTheyChange) {
  uint64_t since = 0;
  v1::Model model;
  model.set_id("tiny");
  agent_->SetModels({model});
  EXPECT_EQ(agent_->Observe(since).models_size(), 1);
  EXPECT_EQ(agent_->Observe(since).models_size(), 0);
  agent_->SetModels({model});
  EXPECT_EQ(agent_->Observe(since).models_size(), 0);
  model.set_problem("tokenizer.json is missing");
  agent_->SetModels({model});
  EXPECT_EQ(agent_->Observe(since).models_size(), 1);
}

}  // namespace
}  // namespace sft::worker
