// Restarts, lost nodes and checkpoints in the server's core, stepped by hand.

#include "common/io/sha256.h"
#include "server/core/checkpoints.h"
#include "server/store/checkpoints.h"
#include "tests/unit/server/core/fleet_fixture.h"

namespace sft::server {
namespace {

using S = v1::AttemptStatus;
using D = v1::DesiredAttempt;
using std::chrono::minutes;
using std::chrono::seconds;

class LifeTest : public FleetTest {
 protected:
  LifeTest() : blobs_(BlobStore::Open(dir_ + "/checkpoints").value()) { MakeCheckpoints(); }

  void MakeCheckpoints() {
    checkpoints_ = std::make_unique<Checkpoints>(*store_, clock_, *blobs_, hub_, [] {});
  }
  void RestartServer() {
    checkpoints_.reset();
    Halt();
    Boot();
    MakeCheckpoints();
  }

  // A job's resolved JSON with more keys of [compute] and [checkpoint].
  std::string SubmitWith(const std::string& resolved, const std::string& type = "CPU",
                         int per_node = 1, int nodes = 1) {
    JobRecord job;
    job.id = "job-" + std::to_string(++submitted_);
    job.project = "default";
    job.owner = "local";
    job.gpu_type = type;
    job.gpus_per_node = per_node;
    job.nodes = nodes;
    job.resolved_json = resolved;
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    return job.id;
  }

  int Attempt(const std::string& job) { return Job(job).attempt(); }
  // A report of the job's current attempt, then a tick.
  void Say(const std::string& node, const std::shared_ptr<FakeWorker>& worker,
           const std::string& job, S::State state, v1::Verdict::Domain domain = v1::Verdict::NONE,
           const std::string& code = "", int64_t step = 0) {
    v1::AttemptStatus status = StatusOf(Uid(job), state, code);
    status.set_epoch(Attempt(job));
    if (!code.empty()) status.mutable_verdict()->set_domain(domain);
    if (step > 0) status.mutable_progress()->set_step(step);
    const absl::Status taken = Observe(node, worker, {status});
    EXPECT_TRUE(taken.ok()) << taken;
    Tick();
  }
  void Fail(const std::string& node, const std::shared_ptr<FakeWorker>& worker,
            const std::string& job, const std::string& code = "rank_killed",
            v1::Verdict::Domain domain = v1::Verdict::INFRASTRUCTURE) {
    Say(node, worker, job, S::DONE, domain, code);
  }
  v1::CommitCheckpointRequest CommitOf(const std::string& job, int64_t step,
                                       const std::string& node, const std::string& content) {
    const std::string hash = io::Sha256Hex(content);
    auto upload = blobs_->Begin(hash, static_cast<int64_t>(content.size()), 0);
    if (upload.ok()) {
      EXPECT_TRUE((*upload)->Append(content).ok());
      EXPECT_TRUE((*upload)->Finish(nullptr).ok());
    }
    v1::CommitCheckpointRequest request;
    request.set_attempt_uid(Uid(job));
    request.set_epoch(Attempt(job));
    request.set_node(node);
    request.set_step(step);
    request.set_bytes(static_cast<int64_t>(content.size()));
    request.set_reason("steps");
    v1::ArtifactFile& file = *request.add_files();
    file.set_path("rank-0");
    file.mutable_blob()->set_sha256(hash);
    file.mutable_blob()->set_size(static_cast<int64_t>(content.size()));
    return request;
  }
  bool Commit(const std::string& job, int64_t step, const std::string& node = "a") {
    const auto answer =
        checkpoints_->Commit(CommitOf(job, step, node, "state " + std::to_string(step)));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() && answer->committed();
  }
  std::vector<int64_t> Steps(const std::string& job) {
    std::vector<int64_t> steps;
    const v1::ListCheckpointsResponse list = checkpoints_->List(job).value();
    for (const auto& each : list.checkpoints()) steps.push_back(each.step());
    return steps;
  }
  // Silence for so long, but for the worker that goes on to say `status` (null: of nothing).
  void PassSilently(seconds time, const std::string& node = "",
                    const std::shared_ptr<FakeWorker>& worker = nullptr,
                    const std::vector<v1::AttemptStatus>& said = {}) {
    constexpr seconds kStep{4};
    for (seconds passed{0}; passed < time; passed += kStep) {
      clock_.Advance(kStep);
      reconciler_->Beat();
      if (worker != nullptr) {
        ASSERT_TRUE(Observe(node, worker, said).ok());
      }
      Tick();
    }
  }

  std::unique_ptr<BlobStore> blobs_;
  std::unique_ptr<Checkpoints> checkpoints_;
};

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

  // Late words of the old epoch change nothing, and the checkpoint it brings is refused.
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

TEST_F(LifeTest, ACheckpointIsCommittedWhenEveryNodeHasRegisteredItsPart) {
  const auto a = Join("a", "H100", 1), b = Join("b", "H100", 1);
  const std::string job = Submit("H100", 1, 2);
  Tick();
  EXPECT_FALSE(Commit(job, 10, "a"));
  EXPECT_TRUE(Steps(job).empty());
  EXPECT_TRUE(Commit(job, 10, "b"));
  EXPECT_EQ(Steps(job), std::vector<int64_t>{10});
  EXPECT_TRUE(Commit(job, 10, "b")) << "a repeat";
  EXPECT_TRUE(
      absl::IsFailedPrecondition(checkpoints_->Commit(CommitOf(job, 10, "c", "x")).status()));
}

TEST_F(LifeTest, TheNodesOfAGangAreToldWhichCheckpointToDeliver) {
  const auto a = Join("a", "H100", 1), b = Join("b", "H100", 1);
  const std::string job = Submit("H100", 1, 2);
  Tick();
  const auto say = [&](const std::string& node, const std::shared_ptr<FakeWorker>& worker,
                       int64_t newest, int64_t settled) {
    v1::AttemptStatus status = StatusOf(Uid(job), S::RUNNING);
    status.set_checkpoint_newest(newest);
    status.set_checkpoint_settled(settled);
    ASSERT_TRUE(Observe(node, worker, {status}).ok());
    Tick();
  };
  say("a", a, 30, 0);
  EXPECT_EQ(a->Wanted(Uid(job))->collect_checkpoint(), 0);
  say("b", b, 20, 0);
  EXPECT_EQ(a->Wanted(Uid(job))->collect_checkpoint(), 20);
  EXPECT_EQ(b->Wanted(Uid(job))->collect_checkpoint(), 20);
  say("a", a, 50, 20);
  RestartServer();
  const auto again = Join("a", "H100", 1);
  Tick();
  EXPECT_EQ(again->Wanted(Uid(job))->collect_checkpoint(), 20) << "b still delivers it";
  say("b", Join("b", "H100", 1), 40, 20);
  EXPECT_EQ(again->Wanted(Uid(job))->collect_checkpoint(), 40);
}

TEST_F(LifeTest, ABlobThatIsNotThereHasToBeUploadedAgain) {
  Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const v1::CommitCheckpointRequest request = CommitOf(job, 10, "a", "x");
  ASSERT_TRUE(blobs_->Remove(request.files(0).blob().sha256()).ok());
  EXPECT_TRUE(absl::IsAborted(checkpoints_->Commit(request).status()));
  EXPECT_TRUE(Steps(job).empty());
}

TEST_F(LifeTest, RetentionDeletesRowsBlobsAndTellsTheNode) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = SubmitWith(R"({"checkpoint":{"save_total_limit":2}})");
  Tick();
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(Commit(job, step));
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{30, 20}));
  EXPECT_FALSE(blobs_->PathOf(io::Sha256Hex("state 10")).ok());
  EXPECT_TRUE(blobs_->PathOf(io::Sha256Hex("state 20")).ok());
  Tick();
  ASSERT_EQ(worker->desired.checkpoints().jobs_size(), 1);
  EXPECT_EQ(worker->desired.checkpoints().jobs(0).steps_size(), 2);
  EXPECT_EQ(worker->desired.checkpoints().jobs(0).steps(0), 20);
}

TEST_F(LifeTest, CheckpointsOfAJobThatEndedGoAfterTheirTime) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(Commit(job, 10));
  Say("a", worker, job, S::DONE, v1::Verdict::NONE, "succeeded");
  clock_.Advance(std::chrono::hours(23));
  ASSERT_TRUE(checkpoints_->Sweep().ok());
  EXPECT_EQ(Steps(job).size(), 1u);
  clock_.Advance(std::chrono::hours(2));
  ASSERT_TRUE(checkpoints_->Sweep().ok());
  EXPECT_TRUE(Steps(job).empty());
  EXPECT_FALSE(blobs_->PathOf(io::Sha256Hex("state 10")).ok());
}

TEST_F(LifeTest, ADamagedCheckpointIsPassedOverForAnEarlierOne) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(Commit(job, 10));
  ASSERT_TRUE(Commit(job, 20));
  Fail("a", worker, job);
  clock_.Advance(seconds(6));
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(job))->dispatch().resume().step(), 20);
  Fail("a", worker, job, "checkpoint_damaged");
  clock_.Advance(seconds(11));
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(job))->dispatch().resume().step(), 10);
}

TEST_F(LifeTest, AResumeMakesANewJobThatGoesOnAndTheEndedOneStaysAsItIs) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(Commit(job, 10));
  ASSERT_TRUE(Commit(job, 20));
  v1::ResumeJobRequest request;
  request.set_name(job);
  request.set_request_id("again");
  request.set_step(10);
  EXPECT_TRUE(absl::IsFailedPrecondition(jobs_->Resume(request, "ann").status())) << "it runs";
  Fail("a", worker, job, "nan_loss", v1::Verdict::USER);
  const v1::Job next = jobs_->Resume(request, "ann").value();
  EXPECT_EQ(jobs_->Resume(request, "ann")->name(), next.name()) << "a repeat";
  EXPECT_EQ(State(job), v1::Job::FAILED);
  Tick();
  const std::string id = next.name().substr(next.name().rfind('/') + 1);
  EXPECT_EQ(worker->Wanted(Uid(id))->dispatch().resume().step(), 10);
  EXPECT_EQ(Job(id).resumed_step(), 10);
  clock_.Advance(std::chrono::hours(24 * 30));
  ASSERT_TRUE(checkpoints_->Sweep().ok());
  EXPECT_EQ(Steps(job).size(), 2u) << "kept for the job that goes on from it";

  request.set_request_id("other");
  request.set_step(15);
  const absl::Status missing = jobs_->Resume(request, "ann").status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_NE(Message(missing).find("there is: 20, 10"), std::string_view::npos) << missing;
}

TEST_F(LifeTest, AskingForACheckpointReachesTheNodeOncePerRequest) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  v1::CheckpointJobRequest request;
  request.set_name(job);
  request.set_request_id("r-1");
  EXPECT_TRUE(absl::IsFailedPrecondition(checkpoints_->Ask(request).status())) << "not running";
  Say("a", worker, job, S::RUNNING);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(checkpoints_->Ask(request).ok());
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(job))->checkpoints_asked(), 1);
  request.set_request_id("r-2");
  ASSERT_TRUE(checkpoints_->Ask(request).ok());
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(job))->checkpoints_asked(), 2);
}

TEST_F(LifeTest, ACancelWithCheckpointSaysSoToTheNode) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  ASSERT_TRUE(jobs_->Cancel(job, "", true).ok());
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(job))->intent(), D::STOP);
  EXPECT_TRUE(worker->Wanted(Uid(job))->checkpoint_first());
  EXPECT_TRUE(Commit(job, 5)) << "a stopping attempt may still commit";
}

TEST_F(LifeTest, ANodeThatFailsManyJobsIsLeftOutWhileOthersFit) {
  const auto a = Join("a", "CPU", 1);
  for (int i = 0; i < 3; ++i) {
    const std::string job = SubmitWith(R"({"compute":{"max_restarts":0}})");
    Tick();
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
