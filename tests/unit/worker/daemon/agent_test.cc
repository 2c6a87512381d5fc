#include "worker/daemon/agent.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/unit/worker/daemon/agent_fixture.h"
#include "worker/channel/claim.h"

namespace sft::worker {
namespace {

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

TEST_F(AgentTest, AStopOfAnUnknownAttemptIsAnsweredWithMissing) {
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

TEST_F(AgentTest, AStopThatWaitsForACheckpointIsToldOnce) {
  Want("wait");
  Launch();
  while (ShimStatus().state != "running") Clock::Real().Sleep(std::chrono::milliseconds(5));
  v1::DesiredAttempt& wanted = *desired_.mutable_attempts(0);
  wanted.set_intent(v1::DesiredAttempt::STOP);
  wanted.set_checkpoint_first(true);
  Tell();
  EXPECT_EQ(Only().state(), Status::STOPPING);
  uint64_t seen = 0;
  agent_->WaitForChange(seen, Nanos(0));
  for (int look = 0; look < 3; ++look) agent_->Step();
  EXPECT_FALSE(agent_->WaitForChange(seen, Nanos(0))) << "each change is a look and a report more";
  EXPECT_EQ(Only().state(), Status::STOPPING);
  clock_.Advance(std::chrono::seconds(1));  // no checkpoint came within the grace period
  agent_->Step();
  FinishAfterShim();
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

TEST_F(AgentTest, ARestartedWorkerFindsTheShimAndFinishesTheAttempt) {
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

TEST_F(AgentTest, ADeadShimIsAnInfrastructureFailure) {
  Want("wait");
  Launch();
  const pid_t shim = static_cast<pid_t>(ShimStatus().shim_pid);
  kill(shim, SIGKILL);
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "shim_lost");
  EXPECT_EQ(Only().verdict().domain(), v1::Verdict::INFRASTRUCTURE);
}

TEST_F(AgentTest, AShimWhoseStatusCannotBeReadIsSilentAndNotGone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can lose the right to read";
  Want("wait");
  Launch();
  const pid_t shim = static_cast<pid_t>(ShimStatus().shim_pid);
  // As if its ranks belonged to another user, who cannot reach the folder.
  const std::string path = setup_.AttemptDir("a-1") + "/attempt.json";
  std::string record = *io::ReadFile(path);
  const size_t at = record.find("\"rank_uid\": 0");
  ASSERT_NE(at, std::string::npos) << record;
  record.replace(at, 13, "\"rank_uid\": 65534");
  agent_.reset();
  Write(path, record);
  NewLife();
  Tell();
  for (int turn = 0; turn < 3; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::PREPARING) << Only().reason();
  EXPECT_EQ(Only().verdict().code(), "");
  clock_.Advance(std::chrono::seconds(61));
  Tell();
  EXPECT_NE(Only().reason().find("cannot be read"), std::string::npos) << Only().reason();
  agent_.reset();
  kill(shim, SIGKILL);
  EXPECT_EQ(waitpid(shim, nullptr, 0), shim);
}

TEST_F(AgentTest, AttemptsUnknownToTheServerAreStoppedAndDeleted) {
  Want("wait");
  Launch();
  // As of a process that serves and was killed.
  const std::string socket = setup_.ServeSockets("a-1") + "0",
                    another = setup_.ServeSockets("a-10") + "0";
  for (const std::string& path : {socket, another}) {
    ASSERT_TRUE(io::WriteFileAtomic(path, "").ok());
  }
  desired_.clear_attempts();
  Tell();
  WaitForShimEnd();
  agent_->Step();
  agent_->StepIo();
  agent_->Step();
  EXPECT_EQ(Observe().attempts_size(), 0);
  EXPECT_FALSE(io::Exists(setup_.AttemptDir("a-1")));
  EXPECT_FALSE(io::Exists(socket));
  EXPECT_TRUE(io::Exists(another));
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
  Want("ok").mutable_dispatch()->set_resolved_json(ResolvedJson(dir_ + "/models/tiny"));
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

TEST_F(AgentTest, AGpuThatFellOffTheBusDoesNotKeepItsAttempt) {
  gpus_ = {{"NVIDIA H100", "GPU-a", 80'000'000'000, 500'000'000, 0},
           {"NVIDIA H100", "GPU-b", 80'000'000'000, 500'000'000, 0}};
  NewLife();
  Want("rank_killed", 2);
  Launch();
  WaitForShimEnd();
  agent_->Step();
  clock_.Advance(std::chrono::seconds(1));
  gpus_[1] = GpuReading{};
  gpus_[1].error = "nvmlDeviceGetHandleByIndex_v2: GPU is lost";
  inventory_->Refresh();
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::FINISHING) << Only().reason();
  const v1::Verdict verdict = Only().verdict();
  EXPECT_EQ(verdict.code(), "gpu_lost");
  EXPECT_NE(verdict.message().find("GPU 1: NVML: nvmlDeviceGetHandleByIndex_v2: GPU is lost"),
            std::string::npos)
      << verdict.message();
  EXPECT_EQ(verdict.evidence(verdict.evidence_size() - 1),
            "GPU 1 cannot be read: its memory was not seen back");
  EXPECT_TRUE(inventory_->Slots()[0].healthy());
}

TEST_F(AgentTest, ADriverThatDoesNotAnswerKeepsAnAttemptForHalfAMinute) {
  EndRanksOnAGpu();
  driver_ = DeadlineExceeded("sft-worker did not end within 10000 ms");
  clock_.Advance(std::chrono::seconds(30));
  inventory_->Refresh();
  agent_->Step();
  EXPECT_LT(Only().state(), Status::STOPPING) << "it may only be slow";
  clock_.Advance(std::chrono::seconds(1));
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::FINISHING) << Only().reason();
  EXPECT_EQ(Only().verdict().code(), "succeeded") << "all ranks did";
  ASSERT_EQ(Only().verdict().evidence_size(), 1);
  EXPECT_NE(Only().verdict().evidence(0).find("GPU 0 could not be read for 30 s"),
            std::string::npos);
}

TEST_F(AgentTest, AGpuThatWaitsForAResetIsNotWaitedForUntilItsMemoryIsBack) {
  EndRanksOnAGpu();
  gpus_[0].memory_used_bytes = 40'000'000'000;
  gpus_[0].recovery = "reset the GPU";
  clock_.Advance(std::chrono::seconds(31));
  inventory_->Refresh();
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::FINISHING) << Only().reason();
}

TEST_F(AgentTest, AShimThatStartsSlowlyIsNotTakenForMissing) {
  const std::string gate = dir_ + "/gate";
  Want("until " + gate);
  shims_.start = [&](const std::string& shim_json) {
    EXPECT_TRUE(shims_.ShimProcesses::Start(shim_json).ok());
    return absl::UnknownError("sft-shim did not end within 10000 ms");
  };
  Launch();
  agent_->Step();
  agent_->StepIo();
  EXPECT_LE(Only().state(), Status::RUNNING) << Only().reason();
  EXPECT_TRUE(io::Exists(setup_.AttemptDir("a-1")));
  Write(gate, "");
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "succeeded") << Only().verdict().message();
  EXPECT_EQ(shims_.starts, 1);
}

TEST_F(AgentTest, AStartThatLeftNoShimIsTriedAgainAfterAPause) {
  Want("ok");
  shims_.start = [](const std::string&) { return absl::UnknownError("no word in time"); };
  Launch();
  agent_->Step();
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::PREPARING) << Only().reason();
  EXPECT_EQ(shims_.starts, 1) << "each try keeps the other attempts waiting";
  shims_.start = nullptr;
  clock_.Advance(std::chrono::seconds(31));
  agent_->Step();
  EXPECT_EQ(shims_.starts, 2);
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "succeeded") << Only().verdict().message();
}

TEST_F(AgentTest, AStartThatFailsDoesNotEndTheAttemptOfAnEarlierShim) {
  Want("ok");
  shims_.start = [](const std::string&) { return absl::UnknownError("no word in time"); };
  Launch();
  {
    // The first shim has begun after all, and says nothing yet.
    const auto claim = channel::ClaimAttempt(setup_.AttemptDir("a-1"), "a-1");
    ASSERT_TRUE(claim.ok()) << claim.status();
    shims_.start = [](const std::string&) { return Unavailable("no memory"); };
    clock_.Advance(std::chrono::seconds(31));
    agent_->Step();
    EXPECT_EQ(shims_.starts, 2);
    EXPECT_EQ(Only().state(), Status::PREPARING) << Only().reason();
    agent_->Step();
    EXPECT_EQ(shims_.starts, 2) << "each try keeps the other attempts waiting";
  }
  shims_.start = nullptr;
  clock_.Advance(std::chrono::seconds(31));
  agent_->Step();
  FinishAfterShim();
  EXPECT_EQ(Only().verdict().code(), "succeeded") << Only().verdict().message();
}

TEST_F(AgentTest, NoShimBeginsOnceAFailedStartHasEndedTheAttempt) {
  Want("ok");
  shims_.start = [](const std::string&) { return absl::UnknownError("no word in time"); };
  Launch();
  shims_.start = [](const std::string&) { return Unavailable("no memory"); };
  clock_.Advance(std::chrono::seconds(31));
  agent_->Step();
  EXPECT_EQ(Only().state(), Status::FINISHING) << Only().reason();
  EXPECT_EQ(Only().verdict().code(), "start_failed");
  const absl::Status late = shims_.ShimProcesses::Start(setup_.AttemptDir("a-1") + "/shim.json");
  EXPECT_TRUE(absl::IsAlreadyExists(late)) << late;
}

TEST_F(AgentTest, AStartTellsAShimThatRefusesFromOneThatSaysNothing) {
  const auto shim = [&](const std::string& text) {
    Write(dir_ + "/shim", "#!/bin/sh\n" + text + "\n");
    EXPECT_EQ(chmod((dir_ + "/shim").c_str(), 0755), 0);
    return ShimProcesses(dir_ + "/shim", std::nullopt, std::chrono::milliseconds(200))
        .Start("shim.json");
  };
  EXPECT_TRUE(absl::IsUnknown(shim("exec sleep 5")));
  EXPECT_TRUE(absl::IsUnknown(shim("kill -9 $$")));
  EXPECT_TRUE(absl::IsUnavailable(shim("echo no room; exit 3")));
}

TEST_F(AgentTest, ASetThatIsOlderThanTheLastCheckpointDoesNotDeleteIt) {
  Want("ok");
  Launch();
  FinishAfterShim();
  const std::string last = setup_.data_dir + "/checkpoints/job-1/step-300";
  Write(last + "/manifest.json", "{}");
  // Sent before the server knew of that step.
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
  desired_.mutable_checkpoints();
  Tell();
  EXPECT_TRUE(io::Exists(last));
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::FORGET);
  desired_.mutable_checkpoints()->add_jobs()->set_job_id("job-1");
  desired_.mutable_checkpoints()->mutable_jobs(0)->add_steps(300);
  Tell();
  EXPECT_TRUE(io::Exists(last));
  desired_.clear_attempts();
  desired_.mutable_checkpoints()->clear_jobs();
  Tell();
  EXPECT_FALSE(io::Exists(last)) << "nobody names it any more";
}

TEST_F(AgentTest, DataIsInUseUntilTheAttemptIsForgotten) {
  EXPECT_TRUE(agent_->InUse().blobs.empty());
  const std::string hash = Want("ok").dispatch().files(0).sha256();
  Tell();
  EXPECT_EQ(agent_->InUse().blobs, std::set<std::string>{hash});
  EXPECT_FALSE(agent_->InUse().cache_since) << "nothing was prepared yet";
  Launch();
  EXPECT_TRUE(agent_->InUse().cache_since);
  NewLife();
  EXPECT_EQ(agent_->InUse().blobs, std::set<std::string>{hash});
  EXPECT_TRUE(agent_->InUse().cache_since);
  Tell();
  FinishAfterShim();
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::FORGET);
  Tell();
  EXPECT_TRUE(agent_->InUse().blobs.empty());
  EXPECT_FALSE(agent_->InUse().cache_since);
}

TEST_F(AgentTest, AnUnreachableServerDoesNotEndAnything) {
  Want("ok");
  Launch();
  server_.failure = Unavailable("no server");
  WaitForShimEnd();
  agent_->Step();
  for (int turn = 0; turn < 5; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::FINISHING);
  EXPECT_NE(Only().retrying().find("no server"), std::string::npos) << Only().retrying();
  server_.failure = absl::OkStatus();
  clock_.Advance(std::chrono::seconds(10));
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_EQ(server_.commits.size(), 1u);
}

TEST_F(AgentTest, StagingThatFailsSaysSoAndEndsAfterEnoughTriesAndTime) {
  Want("ok");
  server_.failure = Unavailable("the way is blocked");
  Tell();
  agent_->StepIo();
  agent_->StepIo();
  EXPECT_EQ(server_.calls, 1) << "what wakes the thread does not cut the wait short";
  clock_.Advance(std::chrono::seconds(10));
  agent_->StepIo();
  EXPECT_EQ(server_.calls, 2);
  const std::string told = Only().retrying();
  EXPECT_NE(told.find("staging failed twice: the way is blocked; tries again in "),
            std::string::npos)
      << told;
  while (Only().state() == Status::STAGING && server_.calls < 1000) {
    clock_.Advance(std::chrono::seconds(10));
    Tell();
    agent_->StepIo();
  }
  EXPECT_EQ(Only().verdict().code(), "staging_failed");
  EXPECT_EQ(Only().verdict().domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_NE(Only().verdict().message().find("times in 15m"), std::string::npos)
      << Only().verdict().message();
  EXPECT_EQ(Only().retrying(), "");
}

TEST_F(AgentTest, WhileTheServerIsAwayStagingDoesNotEnd) {
  Want("ok");
  server_.failure = Unavailable("no server");
  Tell();
  for (int turn = 0; turn < 1000; ++turn) {
    clock_.Advance(std::chrono::minutes(2));
    agent_->Step();
    agent_->StepIo();
  }
  EXPECT_EQ(Only().state(), Status::STAGING);
  server_.failure = absl::OkStatus();
  clock_.Advance(std::chrono::seconds(10));
  Tell();
  agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::READY);
}

TEST_F(AgentTest, LogsThatTheServerNeverTakesDoNotHoldTheSlotsForEver) {
  Want("ok");
  Launch();
  WaitForShimEnd();
  agent_->Step();
  server_.failure = DataLoss("a stored metric cannot be read");
  int turns = 0;
  for (; Only().state() == Status::FINISHING && turns < 2000; ++turns) {
    clock_.Advance(std::chrono::seconds(10));
    Tell();
    agent_->StepIo();
    if (Only().retrying().find("delivery") != std::string::npos) server_.failure = absl::OkStatus();
  }
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_GE(turns, 360) << "an hour";
  EXPECT_EQ(Only().verdict().code(), "succeeded");
  const Status last = Only();
  const auto& evidence = last.verdict().evidence();
  EXPECT_TRUE(std::any_of(evidence.begin(), evidence.end(), [](const std::string& line) {
    return line.find("the server did not take rank-0.log from byte ") != std::string::npos;
  })) << last.verdict().ShortDebugString();
  EXPECT_EQ(server_.commits.size(), 1u);
}

TEST_F(AgentTest, FailuresDuringTrainingDoNotUseUpTheRetriesOfTheEnd) {
  const std::string gate = dir_ + "/gate";
  Want("until " + gate);
  Launch();
  server_.failure = DataLoss("a stored metric cannot be read");
  for (int turn = 0; turn < 1000; ++turn) {
    clock_.Advance(std::chrono::seconds(10));
    Tell();
    agent_->StepIo();
  }
  EXPECT_NE(Only().retrying().find("sending logs and events failed"), std::string::npos)
      << Only().retrying();
  ASSERT_TRUE(io::WriteFileAtomic(gate, "").ok());
  WaitForShimEnd();
  for (int turn = 0; turn < 30; ++turn) {  // five minutes
    Tell();
    agent_->StepIo();
    clock_.Advance(std::chrono::seconds(10));
  }
  EXPECT_EQ(Only().state(), Status::FINISHING);
  EXPECT_NE(Only().retrying().find("sending the rest of logs and events failed "),
            std::string::npos)
      << Only().retrying();
  server_.failure = absl::OkStatus();
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_EQ(Only().verdict().evidence_size(), 0) << Only().verdict().ShortDebugString();
  EXPECT_TRUE((server_.ended[{"a-1", 0}]));
}

TEST_F(AgentTest, PointsThatTheServerLosesDuringTheDeliveryAreShippedAgain) {
  Want("ok");
  Launch();
  WaitForShimEnd();
  agent_->Step();
  server_.before = [this](int) {
    if (!server_.ended[{"a-1", 0}] || server_.event_offsets[{"a-1", 0}] == 0) return;
    server_.before = nullptr;
    server_.failure = Unavailable("no room for the artifact");
  };
  for (int turn = 0; turn < 20 && server_.failure.ok(); ++turn) agent_->StepIo();
  ASSERT_FALSE(server_.events[0].empty());
  agent_->StepIo();
  ASSERT_NE(Only().retrying().find("delivery"), std::string::npos) << Only().retrying();
  const size_t had = server_.events[0].size();
  server_.events[0].clear();
  server_.event_offsets[{"a-1", 0}] = 0;
  server_.failure = absl::OkStatus();
  clock_.Advance(std::chrono::seconds(10));
  for (int turn = 0; turn < 20 && Only().state() != Status::DONE; ++turn) agent_->StepIo();
  EXPECT_EQ(Only().state(), Status::DONE);
  EXPECT_EQ(server_.commits.size(), 1u);
  EXPECT_EQ(server_.events[0].size(), had);
}

TEST_F(AgentTest, AnEndSaysWhenTheProcessesEnded) {
  Want("ok");
  Launch();
  FinishAfterShim();
  const int64_t ended = Only().ended_us();
  EXPECT_GT(ended, 0);
  clock_.Advance(std::chrono::hours(1));
  NewLife();
  EXPECT_EQ(Only().ended_us(), ended);
}

TEST_F(AgentTest, AShimThatDoesNotAcceptTheStopIsReported) {
  Want("wait");
  Launch();
  while (Only().state() != Status::RUNNING) agent_->Step();
  shims_.ask = [](const channel::Command& command) {
    return command.command == "stop" ? Unavailable("no answer") : absl::OkStatus();
  };
  desired_.mutable_attempts(0)->set_intent(v1::DesiredAttempt::STOP);
  Tell();
  EXPECT_FALSE(Only().stuck());
  clock_.Advance(std::chrono::minutes(2));
  Tell();
  EXPECT_TRUE(Only().stuck());
  EXPECT_NE(Only().reason().find("does not take the order to stop"), std::string::npos)
      << Only().reason();
  shims_.ask = nullptr;
  Tell();
  EXPECT_FALSE(Only().stuck());
  FinishAfterShim();
}

TEST_F(AgentTest, WhyRanksCannotStartIsReported) {
  EXPECT_EQ(Observe().rank_problem(), "");
  uint64_t seen = 0;
  agent_->WaitForChange(seen, Nanos(0));
  agent_->SetRankProblem("ranks cannot start: x");
  EXPECT_TRUE(agent_->WaitForChange(seen, Nanos(0)));
  EXPECT_EQ(Observe().rank_problem(), "ranks cannot start: x");
  EXPECT_EQ(Observe().rank_build(), "");
  agent_->SetRankBuild("1.2.3 (build ab)");
  EXPECT_EQ(Observe().rank_build(), "1.2.3 (build ab)");
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
