// Restarts and lost nodes in the server's core, stepped by hand.

#include <limits>

#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

TEST_F(LifeTest, AFaultOfTheMachinesBringsTheJobBackUnderANewEpoch) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string first = Uid(job);
  Say("a", worker, job, S::RUNNING);
  ASSERT_TRUE(Commit(job, 10));
  Fail("a", worker, job);
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_EQ(HeldSlots(), 0u);
  EXPECT_EQ(Job(job).reason().find("restarts after "), 0u) << Job(job).reason();
  clock_.Advance(seconds(4));
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING) << "the wait is not over";
  clock_.Advance(seconds(2));
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  EXPECT_EQ(Attempt(job), 2);
  ASSERT_NE(worker->Wanted(Uid(job)), nullptr);
  EXPECT_EQ(worker->Wanted(Uid(job))->epoch(), 2);
  const v1::Dispatch& dispatch = worker->Wanted(Uid(job))->dispatch();
  EXPECT_EQ(dispatch.resume().step(), 10);
  ASSERT_EQ(dispatch.resume().files_size(), 1);
  EXPECT_EQ(worker->Wanted(first)->intent(), D::FORGET);
  const v1::Job view = Job(job);
  ASSERT_EQ(view.attempts_size(), 2);
  EXPECT_EQ(view.attempts(0).verdict().code(), "rank_killed");
  EXPECT_EQ(view.attempts(0).verdict().retries_left(), 9);
  EXPECT_EQ(view.attempts(1).first_step(), 10);
  EXPECT_FALSE(view.has_verdict());
}

TEST_F(LifeTest, APausedJobWaitsWithItsCheckpointUntilItIsReleased) {
  using Holding = JobManager::Holding;
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string first = Uid(job);
  Say("a", worker, job, S::RUNNING);
  EXPECT_TRUE(absl::IsFailedPrecondition(jobs_->Hold(job, Holding::kHold, "").status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(jobs_->Hold(job, Holding::kRelease, "").status()));
  const auto pausing = jobs_->Hold(job, Holding::kPause, "for now");
  ASSERT_TRUE(pausing.ok()) << pausing.status();
  EXPECT_TRUE(pausing->held());
  EXPECT_EQ(pausing->state(), v1::Job::RUNNING);
  // Twice is once.
  ASSERT_TRUE(jobs_->Hold(job, Holding::kPause, "for now").ok());
  Tick();
  EXPECT_TRUE(worker->Wanted(first)->checkpoint_first());
  ASSERT_TRUE(Commit(job, 10));
  Say("a", worker, job, S::DONE, v1::Verdict::NONE, kMoved);
  clock_.Advance(seconds(4));
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_EQ(HeldSlots(), 0u);
  EXPECT_TRUE(Job(job).held());
  EXPECT_EQ(Job(job).attempts(0).verdict().action(),
            "goes on from its checkpoint once it is released");
  ASSERT_TRUE(jobs_->Hold(job, Holding::kRelease, "").ok());
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  EXPECT_EQ(Attempt(job), 2);
  EXPECT_EQ(Job(job).attempts(1).first_step(), 10);
}

TEST_F(LifeTest, AJobThatIsReleasedWhileItIsPausedGoesOnAtOnce) {
  using Holding = JobManager::Holding;
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  ASSERT_TRUE(jobs_->Hold(job, Holding::kPause, "").ok());
  ASSERT_TRUE(jobs_->Hold(job, Holding::kRelease, "").ok());
  Say("a", worker, job, S::DONE, v1::Verdict::NONE, kMoved);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  ASSERT_TRUE(jobs_->Cancel(job, "", false).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(jobs_->Hold(job, Holding::kPause, "").status()));
}

TEST_F(LifeTest, AWaitingJobWhoseSettingsAreLostEndsWithoutKeepingOthersBack) {
  const std::string lost = Submit("CPU", 1), other = Submit("CPU", 1);
  SpoilSettings(lost);
  const auto worker = Join("a", "CPU", 2);
  Tick();
  EXPECT_EQ(State(lost), v1::Job::FAILED);
  const v1::Job view = Job(lost);
  EXPECT_EQ(view.verdict().code(), "settings_lost");
  EXPECT_EQ(view.verdict().domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_NE(view.verdict().message().find("unknown key lora.of_later"), std::string::npos);
  EXPECT_EQ(view.resolved_json(), R"({"lora":{"of_later":1}})") << "shown as it is stored";
  EXPECT_EQ(State(other), v1::Job::PREPARING);
  EXPECT_EQ(HeldSlots(), 1u);
}

TEST_F(LifeTest, ARunningJobWhoseSettingsAreLostEndsWithItsAttemptAndLeavesItsCheckpoints) {
  const auto worker = Join("a", "CPU", 2);
  const std::string lost = Submit("CPU", 1), other = Submit("CPU", 1);
  Tick();
  Say("a", worker, lost, S::RUNNING);
  SpoilSettings(lost);
  for (int64_t step = 10; step <= 50; step += 10) ASSERT_TRUE(Commit(lost, step));
  EXPECT_EQ(Steps(lost).size(), 5u) << "nothing says how many are kept";
  Fail("a", worker, lost);
  EXPECT_EQ(State(lost), v1::Job::FAILED);
  EXPECT_EQ(Job(lost).verdict().code(), "settings_lost");
  EXPECT_EQ(Job(lost).verdict().evidence(0).find("last: rank_killed"), 0u);
  EXPECT_EQ(Job(lost).attempts(0).verdict().code(), "rank_killed");
  v1::ResumeJobRequest request;
  request.set_name(lost);
  const absl::Status resumed = jobs_->Resume(request, "ann").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(resumed)) << resumed;
  EXPECT_NE(resumed.message().find("its stored settings cannot be read"), std::string_view::npos);
  EXPECT_EQ(State(other), v1::Job::PREPARING);
  Report("a", worker, Uid(other), S::RUNNING);
  Tick();
  EXPECT_EQ(State(other), v1::Job::RUNNING);
}

// Both nodes are given up in one transaction.
TEST_F(LifeTest, ASilentNodeOfAJobWhoseSettingsAreLostKeepsNoOtherBack) {
  const auto a = Join("a", "CPU", 1);
  const std::string lost = Submit("CPU", 1);
  Tick();
  Say("a", a, lost, S::RUNNING);
  const auto b = Join("b", "CPU", 1);
  const std::string other = Submit("CPU", 1);
  Tick();
  Say("b", b, other, S::RUNNING);
  SpoilSettings(lost);
  registry_->Disconnect("a", a.get());
  registry_->Disconnect("b", b.get());
  for (int i = 0; i < 400 && State(lost) != v1::Job::FAILED; ++i) {
    clock_.Advance(seconds(4));
    reconciler_->Beat();
    Tick();
  }
  EXPECT_EQ(State(lost), v1::Job::FAILED);
  EXPECT_EQ(Job(lost).verdict().code(), "settings_lost");
  EXPECT_EQ(State(other), v1::Job::PENDING) << "it is placed again";
}

// A quick job has done fifty steps when the server first hears of one: its ranks then know only the
// time of the first step, setup included.
TEST_F(LifeTest, TheEndAfterFiftyStepsIsExpectedFromThePaceOfMany) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const auto say = [&](int64_t step, double eta_seconds) {
    v1::AttemptStatus status = StatusOf(Uid(job), S::RUNNING, "");
    status.set_epoch(1);
    status.mutable_progress()->set_step(step);
    status.mutable_progress()->set_total_steps(1000);
    status.mutable_progress()->set_eta_seconds(eta_seconds);
    ASSERT_TRUE(Observe("a", worker, {status}).ok());
    Tick();
  };
  const auto expected_us = [&] {
    int64_t end_us = 0;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(auto get, db.Prepare("SELECT end50_us FROM estimates"));
                      SFT_ASSIGN_OR_RETURN(const bool row, get.Step());
                      if (row) end_us = get.Int(0);
                      return absl::OkStatus();
                    })
                    .ok());
    return end_us;
  };
  say(100, 900);
  EXPECT_EQ(expected_us(), 0) << "of one look nothing is known";
  clock_.Advance(seconds(1));
  say(200, 900);
  EXPECT_EQ(expected_us(), UnixMicros(clock_.Wall()) + 8'000'000) << "100 steps a second";
}

TEST_F(LifeTest, ALossThatIsNotANumberIsNewsOnce) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  int woken = 0;
  const auto follower = hub_.Subscribe({job}, [&] { ++woken; }).value();
  v1::AttemptStatus status = StatusOf(Uid(job), S::RUNNING);
  status.mutable_progress()->set_step(5);
  status.mutable_progress()->set_val_loss(std::numeric_limits<double>::quiet_NaN());
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  EXPECT_EQ(woken, 1);
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  EXPECT_EQ(woken, 1) << "the same report again";
  status.mutable_progress()->set_step(6);
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  EXPECT_EQ(woken, 2);
}

TEST_F(LifeTest, GradesOfAnswersAreNewsOnceAndStay) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  int woken = 0;
  const auto follower = hub_.Subscribe({job}, [&] { ++woken; }).value();
  v1::AttemptStatus status = StatusOf(Uid(job), S::RUNNING);
  status.mutable_progress()->set_step(5);
  v1::NamedValue& grade = *status.mutable_progress()->add_values();
  grade.set_name("val.f1");
  grade.set_value(0.5);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Observe("a", worker, {status}).ok());
  EXPECT_EQ(woken, 1);
  status.mutable_progress()->set_step(6);
  status.mutable_progress()->clear_values();
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  const v1::Progress progress = Job(job).progress();
  ASSERT_EQ(progress.values_size(), 1);
  EXPECT_EQ(progress.values(0).value(), 0.5);
}

TEST_F(LifeTest, TrafficThatIsToldAgainIsNotMore) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  v1::AttemptStatus status = StatusOf(Uid(job), S::RUNNING);
  status.mutable_progress()->set_step(5);
  status.mutable_progress()->add_traffic()->set_axis("replicate");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Observe("a", worker, {status}).ok());
  status.mutable_progress()->clear_traffic();
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  EXPECT_EQ(Job(job).progress().traffic_size(), 1);
}

TEST_F(LifeTest, EachNodeTellsOfItsOwnRanks) {
  const auto a = Join("a", "CPU", 2), b = Join("b", "CPU", 2);
  const std::string job = Submit("CPU", 2, /*nodes=*/2);
  Tick();
  const auto status_of = [&](int rank, int64_t bytes) {
    v1::AttemptStatus status = StatusOf(Uid(job), S::RUNNING);
    v1::RankProgress& said = *status.mutable_progress()->add_ranks();
    said.set_rank(rank);
    said.set_step(5);
    said.set_gpu_memory_bytes(bytes);
    return status;
  };
  const auto shown = [&] {
    std::string text;
    const v1::Progress progress = Job(job).progress();
    for (const v1::RankProgress& rank : progress.ranks()) {
      text += std::to_string(rank.rank()) + ":" + std::to_string(rank.gpu_memory_bytes()) + " ";
    }
    return text;
  };
  v1::AttemptStatus of_b = status_of(3, 30);
  of_b.mutable_progress()->set_step(99);
  *of_b.mutable_progress()->add_ranks() = status_of(0, 66).progress().ranks(0);  // is not its own
  ASSERT_TRUE(Observe("b", b, {of_b}).ok());
  ASSERT_TRUE(Observe("a", a, {status_of(1, 10)}).ok());
  ASSERT_TRUE(Observe("a", a, {status_of(0, 11)}).ok());
  EXPECT_EQ(shown(), "0:11 1:10 3:30 ");
  ASSERT_TRUE(Observe("b", b, {status_of(3, 31)}).ok());
  EXPECT_EQ(shown(), "0:11 1:10 3:31 ");
  EXPECT_EQ(Job(job).progress().step(), 0) << "which rank 0's node tells";
  EXPECT_TRUE(jobs_->List({})->jobs.at(0).progress().ranks().empty());
}

TEST_F(LifeTest, AUserFaultIsNotRetried) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Fail("a", worker, job, "nan_loss", v1::Verdict::USER);
  EXPECT_EQ(State(job), v1::Job::FAILED);
  EXPECT_EQ(Job(job).verdict().action(), "not restarted: the job itself has to be changed");
  EXPECT_FALSE(Job(job).verdict().has_retries_left());
}

TEST_F(LifeTest, WithoutProgressTheRestartsEndAndTheVerdictSaysSo) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  for (int attempt = 1; attempt <= 4; ++attempt) {
    clock_.Advance(minutes(6));
    ASSERT_TRUE(Observe("a", worker, {}).ok());
    Tick();
    ASSERT_EQ(Attempt(job), attempt);
    Fail("a", worker, job);
  }
  EXPECT_EQ(State(job), v1::Job::FAILED);
  EXPECT_EQ(Job(job).verdict().code(), "no_progress");
  EXPECT_EQ(Job(job).attempts(3).verdict().code(), "rank_killed") << "the attempt keeps its own";
}

TEST_F(LifeTest, AServerThatRestartsBetweenTwoAttemptsGoesOn) {
  auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(Commit(job, 10));
  Fail("a", worker, job);
  RestartServer();
  worker = Join("a", "CPU", 1, "life-2");
  clock_.Advance(seconds(6));
  Tick();
  EXPECT_EQ(Attempt(job), 2);
  EXPECT_EQ(worker->Wanted(Uid(job))->dispatch().resume().step(), 10);
}

TEST_F(LifeTest, CancelOfAJobThatWaitsForItsRestartIsDoneAtOnce) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Fail("a", worker, job);
  ASSERT_EQ(State(job), v1::Job::PENDING);
  EXPECT_EQ(jobs_->Cancel(job, "", false)->state(), v1::Job::CANCELLED);
  clock_.Advance(seconds(10));
  Tick();
  EXPECT_EQ(State(job), v1::Job::CANCELLED);
  EXPECT_EQ(HeldSlots(), 0u);
}

TEST_F(LifeTest, AWallClockThatGoesBackAnHourDoesNotProlongTheWait) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Fail("a", worker, job);
  clock_.JumpWall(-std::chrono::hours(1));
  Tick();
  EXPECT_EQ(Attempt(job), 2);
}

TEST_F(LifeTest, ARestartAvoidsTheNodeThatWasBlamed) {
  const auto a = Join("a", "CPU", 1), b = Join("b", "CPU", 2);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_NE(a->Wanted(Uid(job)), nullptr) << "the tighter fit";
  Fail("a", a, job);
  clock_.Advance(seconds(6));
  Tick();
  EXPECT_NE(b->Wanted(Uid(job)), nullptr);
}

TEST_F(LifeTest, ASilentNodeIsGivenUpAfterTheLimitAndItsSlotsStayHeld) {
  const auto a = Join("a", "CPU", 1);
  const std::string job = SubmitWith(R"({"compute":{"unreachable_after":"2m"}})");
  Tick();
  const std::string first = Uid(job);
  Say("a", a, job, S::RUNNING);
  ASSERT_TRUE(Commit(job, 10));
  const auto b = Join("b", "CPU", 1);
  PassSilently(seconds(172), "b", b);  // the limit and most of the margin
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  EXPECT_NE(Job(job).reason().find("placed elsewhere if that lasts 2m"), std::string::npos)
      << Job(job).reason();
  PassSilently(seconds(28), "b", b);
  EXPECT_EQ(Attempt(job), 2);
  EXPECT_EQ(Job(job).attempts(0).verdict().code(), "node_unreachable");
  ASSERT_NE(b->Wanted(Uid(job)), nullptr);
  EXPECT_EQ(b->Wanted(Uid(job))->dispatch().resume().step(), 10);
  EXPECT_EQ(HeldSlots(), 2u) << "nobody knows what runs on a";

  // Late reports of the old epoch change nothing, and the checkpoint they bring is refused.
  const auto again = Join("a", "CPU", 1, "life-2");
  v1::AttemptStatus late = StatusOf(first, S::RUNNING);
  ASSERT_TRUE(Observe("a", again, {late}).ok());
  Tick();
  EXPECT_EQ(Attempt(job), 2);
  ASSERT_NE(again->Wanted(first), nullptr);
  EXPECT_EQ(again->Wanted(first)->intent(), D::FORGET) << "it is told to stop and forget";
  v1::CommitCheckpointRequest request = CommitOf(job, 20, "a", "late");
  request.set_attempt_uid(first);
  request.set_epoch(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(checkpoints_->Commit(request).status()));
  EXPECT_EQ(HeldSlots(), 2u);
  ASSERT_TRUE(Observe("a", again, {}).ok());
  EXPECT_EQ(HeldSlots(), 1u) << "free when the node says that nothing is left";
}

TEST_F(LifeTest, AJobThatWantsToWaitIsNotPlacedElsewhere) {
  const auto a = Join("a", "CPU", 1);
  const std::string job =
      SubmitWith(R"({"compute":{"unreachable_after":"1m","on_unreachable":"wait"}})");
  Tick();
  Say("a", a, job, S::RUNNING);
  PassSilently(minutes(10));
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  Say("a", a, job, S::RUNNING);
  Say("a", a, job, S::DONE, v1::Verdict::NONE, "succeeded");
  EXPECT_EQ(State(job), v1::Job::SUCCEEDED);
  EXPECT_EQ(Attempt(job), 1);
}

TEST_F(LifeTest, TimeInWhichTheServerWasStoppedIsNotSilence) {
  const auto a = Join("a", "CPU", 1);
  const std::string job = SubmitWith(R"({"compute":{"unreachable_after":"1m"}})");
  Tick();
  Say("a", a, job, S::RUNNING);
  reconciler_->Beat();
  clock_.Advance(minutes(30));  // SIGSTOP
  reconciler_->Beat();
  Tick();
  EXPECT_EQ(Attempt(job), 1);
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  EXPECT_EQ(Job(job).reason(), "") << "not even SUSPECT";
  PassSilently(minutes(3));
  EXPECT_EQ(Job(job).attempts(0).verdict().code(), "node_unreachable") << "real silence counts";
}

TEST_F(LifeTest, ANodeHeardJustAfterAStopIsStillMissedLater) {
  const auto a = Join("a", "CPU", 1);
  const std::string job = SubmitWith(R"({"compute":{"unreachable_after":"1m"}})");
  Tick();
  Say("a", a, job, S::RUNNING);
  reconciler_->Beat();
  clock_.Advance(minutes(30));
  Say("a", a, job, S::RUNNING, v1::Verdict::NONE, "", 3);  // before the first beat
  reconciler_->Beat();
  PassSilently(minutes(3));
  EXPECT_EQ(Job(job).attempts(0).verdict().code(), "node_unreachable");
}

TEST_F(LifeTest, ARestartedServerBeginsToCountAnew) {
  Join("a", "CPU", 1);
  const std::string job = SubmitWith(R"({"compute":{"unreachable_after":"2m"}})");
  Tick();
  PassSilently(seconds(150));
  RestartServer();
  PassSilently(seconds(150));
  EXPECT_EQ(Attempt(job), 1);
  PassSilently(seconds(60));
  EXPECT_EQ(State(job), v1::Job::PENDING);
}

TEST_F(LifeTest, TheOthersOfAGangAreStoppedBeforeItIsPlacedAgain) {
  const auto a = Join("a", "H100", 1), b = Join("b", "H100", 1);
  const std::string job = SubmitWith(R"({"compute":{"unreachable_after":"1m"}})", "H100", 1, 2);
  Tick();
  Say("a", a, job, S::RUNNING);
  Say("b", b, job, S::RUNNING);
  PassSilently(seconds(128), "b", b, {StatusOf(Uid(job), S::RUNNING)});
  EXPECT_EQ(b->Wanted(Uid(job))->intent(), D::STOP);
  EXPECT_EQ(Attempt(job), 1);
  EXPECT_EQ(HeldSlots(), 2u);
  Say("b", b, job, S::DONE, v1::Verdict::NONE, "stopped");
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_EQ(HeldSlots(), 1u) << "b's is free, a's is not";
}

TEST_F(LifeTest, CancelOfAJobOnALostNodeEndsAfterTheLimit) {
  const auto a = Join("a", "CPU", 1);
  const std::string job = SubmitWith(R"({"compute":{"unreachable_after":"1m"}})");
  Tick();
  Say("a", a, job, S::RUNNING);
  EXPECT_EQ(jobs_->Cancel(job, "", false)->state(), v1::Job::CANCELLING);
  PassSilently(seconds(100));
  EXPECT_EQ(State(job), v1::Job::CANCELLING);
  PassSilently(seconds(30));
  EXPECT_EQ(State(job), v1::Job::CANCELLED);
}

TEST_F(LifeTest, ANodeThatFailsManyJobsIsLeftOutWhileOthersFit) {
  const auto a = Join("a", "CPU", 1);
  for (int i = 0; i < 3; ++i) {
    const std::string job = SubmitWith(R"({"compute":{"max_restarts":0}})");
    Tick();
    Say("a", a, job, S::RUNNING, v1::Verdict::NONE, "", 1);
    Fail("a", a, job, "xid_79");
  }
  const std::string alone = Submit("CPU", 1);
  Tick();
  EXPECT_NE(a->Wanted(Uid(alone)), nullptr) << "there is no other node";
  Say("a", a, alone, S::DONE, v1::Verdict::NONE, "succeeded");
  Join("b", "CPU", 8);
  const std::string first = Submit("CPU", 8), second = Submit("CPU", 1);
  Tick();
  EXPECT_EQ(State(second), v1::Job::PENDING);
  EXPECT_NE(Job(second).reason().find("left out until"), std::string::npos) << Job(second).reason();
}

}  // namespace
}  // namespace sft::server
