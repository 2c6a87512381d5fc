#include <limits>

#include "server/store/node_holds.h"
#include "server/store/nodes.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

using S = v1::AttemptStatus;
using D = v1::DesiredAttempt;

TEST_F(FleetTest, AJobRunsFromSubmissionToTheEndAndItsSlotsAreFreed) {
  const auto worker = Join("a", "CPU", 2);
  const std::string job = Submit("CPU", 2);
  EXPECT_EQ(State(job), v1::Job::PENDING);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  EXPECT_EQ(HeldSlots(), 2u);
  const std::string uid = Uid(job);
  ASSERT_NE(worker->Wanted(uid), nullptr);
  EXPECT_EQ(worker->Wanted(uid)->intent(), D::RUN);
  const v1::Dispatch& dispatch = worker->Wanted(uid)->dispatch();
  EXPECT_EQ(dispatch.world_size(), 2);
  EXPECT_EQ(dispatch.slots_size(), 2);
  EXPECT_EQ(dispatch.job_id(), job);
  Report("a", worker, uid, S::STAGING);
  EXPECT_FALSE(worker->Wanted(uid)->has_dispatch()) << "the spec travels once";
  Report("a", worker, uid, S::PREPARING);
  Report("a", worker, uid, S::RUNNING);
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  Report("a", worker, uid, S::FINISHING, "succeeded");
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  EXPECT_EQ(HeldSlots(), 2u) << "slots are free only when the node says so";
  Report("a", worker, uid, S::DONE, "succeeded");
  EXPECT_EQ(State(job), v1::Job::SUCCEEDED);
  EXPECT_EQ(HeldSlots(), 0u);
  EXPECT_EQ(worker->Wanted(uid)->intent(), D::FORGET);
  ASSERT_TRUE(Observe("a", worker, {}).ok());
  Tick();
  EXPECT_EQ(worker->Wanted(uid), nullptr);
}

TEST_F(FleetTest, ImplausiblePartsOfAReportAreLeftOut) {
  const auto worker = Join("a", "CPU", 2);
  const std::string first = Submit("CPU", 1), second = Submit("CPU", 1);
  Tick();
  Report("a", worker, Uid(first), S::RUNNING);
  // A state of a later version; the same report has another attempt, the disk and the slots.
  v1::Observed observed;
  *observed.add_attempts() = StatusOf(Uid(first), static_cast<S::State>(77));
  *observed.add_attempts() = StatusOf(Uid(second), S::RUNNING);
  observed.mutable_attempts(1)->mutable_progress()->set_step(5);
  observed.mutable_disk()->set_level(static_cast<v1::NodeDisk::Level>(9));
  observed.set_time_us(std::numeric_limits<int64_t>::max());
  *observed.mutable_slots() = RegisterOf("a", "CPU", 2).slots();
  observed.mutable_slots(0)->set_memory_bytes(-1);
  v1::Model* model = observed.add_models();
  model->set_id("bad\nname");
  model = observed.add_models();
  model->set_id("good");
  ASSERT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
  Tick();
  EXPECT_EQ(State(first), v1::Job::RUNNING);
  EXPECT_EQ(State(second), v1::Job::RUNNING);
  EXPECT_EQ(Job(second).progress().step(), 5);
  EXPECT_EQ(registry_->Get("a").disk.level(), v1::NodeDisk::LEVEL_UNSPECIFIED);
  EXPECT_FALSE(registry_->Get("a").clock_offset.has_value());
  EXPECT_EQ(registry_->refusals().counts()["a"], 5);
  std::vector<ModelRecord> models;
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(models, store::ListModels(db, 0, 10));
                    return absl::OkStatus();
                  })
                  .ok());
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].id, "good");
  // A plausible end of it is accepted.
  Report("a", worker, Uid(first), S::DONE, "succeeded");
  EXPECT_EQ(State(first), v1::Job::SUCCEEDED);
}

TEST_F(FleetTest, ANodeBlamesNoOtherNodeThanThoseOfItsGang) {
  const auto worker = Join("a", "CPU", 1);
  Join("b", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  v1::AttemptStatus status = StatusOf(Uid(job), S::DONE, "rank_killed");
  status.mutable_verdict()->set_domain(v1::Verdict::INFRASTRUCTURE);
  status.mutable_verdict()->set_node("b");
  status.mutable_verdict()->set_message(std::string(100'000, 'm'));
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  const v1::Verdict verdict = Job(job).attempts(0).verdict();
  EXPECT_EQ(verdict.node(), "a");
  EXPECT_LT(verdict.message().size(), 17'000u);
}

TEST_F(FleetTest, AJobThatEndsBetweenTwoReportsStillTakesEveryEdge) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Report("a", worker, Uid(job), S::DONE, "succeeded");
  EXPECT_EQ(State(job), v1::Job::SUCCEEDED);
  std::vector<std::string> edges;
  const std::vector<v1::JobEvent> events = jobs_->Events(job, 0, 100).value();
  for (const v1::JobEvent& event : events) {
    if (event.type() == "state") edges.push_back(event.message());
  }
  EXPECT_EQ(edges, (std::vector<std::string>{"PENDING -> PREPARING", "PREPARING -> RUNNING",
                                             "RUNNING -> SUCCEEDED"}));
}

TEST_F(FleetTest, TheRendezvousOfRankZerosNodeIsPassedToTheOthers) {
  const auto a = Join("a", "H100", 2), b = Join("b", "H100", 2);
  const std::string job = Submit("H100", 2, 2);
  Tick();
  const std::string uid = Uid(job);
  EXPECT_EQ(a->Wanted(uid)->dispatch().node_rank(), 0);
  EXPECT_EQ(b->Wanted(uid)->dispatch().node_rank(), 1);
  EXPECT_EQ(b->Wanted(uid)->dispatch().first_rank(), 2);
  EXPECT_EQ(b->Wanted(uid)->dispatch().world_size(), 4);
  Report("b", b, uid, S::READY);
  EXPECT_EQ(b->Wanted(uid)->rendezvous(), "");
  v1::AttemptStatus ready = StatusOf(uid, S::READY);
  ready.set_rendezvous("10.0.0.1:29500");
  ASSERT_TRUE(Observe("a", a, {ready}).ok());
  Tick();
  EXPECT_EQ(b->Wanted(uid)->rendezvous(), "10.0.0.1:29500");
  EXPECT_EQ(a->Wanted(uid)->rendezvous(), "10.0.0.1:29500");
  Report("a", a, uid, S::RUNNING);
  EXPECT_EQ(State(job), v1::Job::PREPARING) << "until every node runs";
  Report("b", b, uid, S::RUNNING);
  EXPECT_EQ(State(job), v1::Job::RUNNING);
}

TEST_F(FleetTest, TheFirstFailingNodeEndsTheGangOnAllNodes) {
  const auto a = Join("a", "H100", 1), b = Join("b", "H100", 1);
  const std::string job = Submit("H100", 1, 2);
  Tick();
  const std::string uid = Uid(job);
  Report("a", a, uid, S::RUNNING);
  Report("b", b, uid, S::RUNNING);
  Report("b", b, uid, S::FINISHING, "nan_loss");
  EXPECT_EQ(a->Wanted(uid)->intent(), D::STOP);
  EXPECT_EQ(State(job), v1::Job::RUNNING) << "not over before its processes are";
  Report("b", b, uid, S::DONE, "nan_loss");
  EXPECT_EQ(HeldSlots(), 2u);
  Report("a", a, uid, S::DONE, "stopped");
  EXPECT_EQ(State(job), v1::Job::FAILED);
  EXPECT_EQ(Job(job).verdict().code(), "nan_loss") << "the first failure is the verdict";
  EXPECT_EQ(Job(job).verdict().node(), "b");
  EXPECT_EQ(HeldSlots(), 0u);
}

TEST_F(FleetTest, ASecondJobWaitsWithAReasonAndStartsWhenTheFirstEnds) {
  const auto worker = Join("a", "H100", 8);
  const std::string first = Submit("H100", 4), second = Submit("H100", 8);
  Tick();
  EXPECT_EQ(State(second), v1::Job::PENDING);
  EXPECT_EQ(Job(second).reason(), "waiting for 8 x H100 on one node: a has 8, 4 held by " + first);
  Report("a", worker, Uid(first), S::DONE, "succeeded");
  EXPECT_EQ(State(second), v1::Job::PREPARING);
  EXPECT_EQ(Job(second).reason(), "");
}

TEST_F(FleetTest, CancelOfAPendingJobIsDoneAtOnce) {
  const std::string job = Submit("CPU", 1);
  EXPECT_EQ(jobs_->Cancel(job, "not needed", false)->state(), v1::Job::CANCELLED);
  EXPECT_EQ(Job(job).verdict().code(), "cancelled");
  EXPECT_EQ(jobs_->Cancel(job, "again", false)->state(), v1::Job::CANCELLED);
}

TEST_F(FleetTest, CancelOfARunningJobFreesItsSlotsWhenTheNodeHasEndedIt) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", worker, uid, S::RUNNING);
  EXPECT_EQ(jobs_->Cancel(job, "", false)->state(), v1::Job::CANCELLING);
  Tick();
  EXPECT_EQ(worker->Wanted(uid)->intent(), D::STOP);
  Report("a", worker, uid, S::STOPPING);
  EXPECT_EQ(State(job), v1::Job::CANCELLING);
  EXPECT_EQ(HeldSlots(), 1u);
  Report("a", worker, uid, S::DONE, "stopped");
  EXPECT_EQ(State(job), v1::Job::CANCELLED);
  EXPECT_EQ(HeldSlots(), 0u);
}

TEST_F(FleetTest, CancelBeforeTheNodeHasTheSpecEndsWhenItSaysThatItHasNothing) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(jobs_->Cancel(job, "", false).ok());
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(job))->intent(), D::STOP);
  EXPECT_FALSE(worker->Wanted(Uid(job))->has_dispatch());
  Report("a", worker, Uid(job), S::MISSING);
  EXPECT_EQ(State(job), v1::Job::CANCELLED);
}

TEST_F(FleetTest, ASilentNodeIsSuspectAndNothingOnItIsStopped) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", worker, uid, S::RUNNING);
  clock_.Advance(std::chrono::seconds(16));
  Tick();
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  EXPECT_EQ(HeldSlots(), 1u);
  EXPECT_EQ(worker->Wanted(uid)->intent(), D::RUN);
  EXPECT_EQ(Job(job).reason().find("waiting for a, silent since"), 0u) << Job(job).reason();
  const std::string next = Submit("CPU", 1);
  Tick();
  EXPECT_NE(Job(next).reason().find("silent since"), std::string::npos) << Job(next).reason();
  Report("a", worker, uid, S::RUNNING);
  EXPECT_EQ(Job(job).reason(), "");
}

TEST_F(FleetTest, AWallClockThatJumpsMakesNobodySuspect) {
  const auto worker = Join("a", "CPU", 1);
  clock_.JumpWall(std::chrono::hours(5));
  Tick();
  NodeRecord node;
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(node, store::GetNode(db, "a"));
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(node.state, NodeState::kUp);
}

TEST_F(FleetTest, ARestartedWorkerThatHasItsAttemptGoesOn) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", worker, uid, S::RUNNING);
  registry_->Disconnect("a", worker.get());
  const auto again = Join("a", "CPU", 1, "life-2");
  Tick();
  EXPECT_EQ(again->Wanted(uid)->intent(), D::RUN);
  Report("a", again, uid, S::RUNNING);
  Report("a", again, uid, S::DONE, "succeeded");
  EXPECT_EQ(State(job), v1::Job::SUCCEEDED);
}

TEST_F(FleetTest, ARestartedNodeThatLostItsAttemptFailsItAsInfrastructure) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", worker, uid, S::RUNNING);
  registry_->Disconnect("a", worker.get());
  const auto again = Join("a", "CPU", 1, "life-2");
  Tick();
  Report("a", again, uid, S::MISSING);
  EXPECT_EQ(State(job), v1::Job::PENDING) << "it is restarted";
  EXPECT_EQ(Job(job).attempts(0).verdict().domain(), v1::Verdict::INFRASTRUCTURE);
  EXPECT_EQ(Job(job).attempts(0).verdict().message(), "a restarted; its processes are gone");
  EXPECT_EQ(HeldSlots(), 0u);
}

TEST_F(FleetTest, ARestartedServerGoesOnFromTheDatabase) {
  auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1), waiting = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  v1::AttemptStatus running = StatusOf(uid, S::RUNNING);
  running.set_rendezvous("h:1");
  ASSERT_TRUE(Observe("a", worker, {running}).ok());
  Halt();
  Boot();
  Tick();
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  worker = Join("a", "CPU", 1);
  Tick();
  EXPECT_EQ(worker->Wanted(uid)->rendezvous(), "h:1");
  EXPECT_FALSE(worker->Wanted(uid)->has_dispatch());
  EXPECT_EQ(State(waiting), v1::Job::PENDING);
  Report("a", worker, uid, S::DONE, "succeeded");
  EXPECT_EQ(State(job), v1::Job::SUCCEEDED);
  EXPECT_EQ(State(waiting), v1::Job::PREPARING);
}

TEST_F(FleetTest, ARestartedServerDoesNotCountTheTimeItWasDown) {
  Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Halt();
  clock_.Advance(std::chrono::hours(1));
  Boot();
  Tick();
  EXPECT_EQ(Job(job).reason(), "");
  clock_.Advance(std::chrono::seconds(16));
  Tick();
  EXPECT_NE(Job(job).reason().find("silent since"), std::string::npos);
}

TEST_F(FleetTest, AReportOfAnotherEpochIsDropped) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  v1::AttemptStatus old = StatusOf(Uid(job), S::DONE, "bad_data");
  old.set_epoch(7);
  ASSERT_TRUE(Observe("a", worker, {old}).ok());
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  EXPECT_EQ(HeldSlots(), 1u);
}

TEST_F(FleetTest, AnAttemptTheServerDoesNotKnowIsForgottenOnlyWhenItIsDone) {
  const auto worker = Join("a", "CPU", 1);
  Report("a", worker, "attempt-x", S::RUNNING);
  EXPECT_EQ(worker->Wanted("attempt-x"), nullptr) << "absence tells the worker to stop it";
  Report("a", worker, "attempt-x", S::DONE);
  ASSERT_NE(worker->Wanted("attempt-x"), nullptr);
  EXPECT_EQ(worker->Wanted("attempt-x")->intent(), D::FORGET);
}

TEST_F(FleetTest, ProcessesThatDoNotEndKeepTheSlotsAndSaySo) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const std::string uid = Uid(job);
  Report("a", worker, uid, S::RUNNING);
  ASSERT_TRUE(jobs_->Cancel(job, "", false).ok());
  v1::AttemptStatus stuck = StatusOf(uid, S::STOPPING);
  stuck.set_stuck(true);
  stuck.set_reason("pid 7 is in state D");
  ASSERT_TRUE(Observe("a", worker, {stuck}).ok());
  Tick();
  EXPECT_EQ(State(job), v1::Job::CANCELLING);
  EXPECT_EQ(Job(job).reason(), "waiting for processes on a that do not end: pid 7 is in state D");
  EXPECT_EQ(HeldSlots(), 1u);
}

TEST_F(FleetTest, ADesiredSetIsSentOnlyWhenItChanges) {
  const auto worker = Join("a", "CPU", 1);
  Tick();
  EXPECT_EQ(worker->desired_count, 1) << "the answer to Register, also when it is empty";
  Tick();
  EXPECT_EQ(worker->desired_count, 1);
  Submit("CPU", 1);
  Tick();
  EXPECT_EQ(worker->desired_count, 2);
}

TEST_F(FleetTest, ANewStreamOfANodeReplacesTheOldOne) {
  const auto first = Join("a", "CPU", 1);
  const auto second = Join("a", "CPU", 1, "life-2");
  EXPECT_TRUE(absl::IsAborted(first->closed));
  EXPECT_TRUE(absl::IsAborted(Observe("a", first, {})));
  EXPECT_TRUE(Observe("a", second, {}).ok());
  registry_->Disconnect("a", first.get());
  EXPECT_EQ(registry_->connected(), 1);
}

TEST_F(FleetTest, TwoHostsCannotHaveOneNodeName) {
  Join("a", "CPU", 1);
  v1::Register twin = RegisterOf("a", "CPU", 1);
  twin.set_hostname("another-host");
  const absl::Status refused = registry_->Connect(twin, std::make_shared<FakeWorker>());
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_EQ(registry_->MakeWelcome(refused).refused(), Message(refused));
}

TEST_F(FleetTest, ASecondWorkerOfANameOnTheSameHostIsRefusedWhileTheFirstIsConnected) {
  v1::Register first = RegisterOf("a", "CPU", 1), second = first;
  first.set_data_dir_id("folder-1");
  second.set_data_dir_id("folder-2");
  const auto worker = std::make_shared<FakeWorker>(), again = std::make_shared<FakeWorker>();
  ASSERT_TRUE(registry_->Connect(first, worker).ok());
  const std::string job = Submit("CPU", 1);
  Tick();
  Report("a", worker, Uid(job), S::RUNNING);
  const absl::Status refused = registry_->Connect(second, std::make_shared<FakeWorker>());
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_NE(Message(refused).find("--node"), std::string_view::npos) << refused;
  EXPECT_TRUE(worker->closed.ok()) << "the first keeps its stream";
  EXPECT_EQ(State(job), v1::Job::RUNNING);
  ASSERT_TRUE(registry_->Connect(first, again).ok()) << "its own restart is let in";
  EXPECT_FALSE(worker->closed.ok());
  registry_->Disconnect("a", again.get());
  EXPECT_TRUE(absl::IsAlreadyExists(registry_->Connect(second, std::make_shared<FakeWorker>())))
      << "a break of the stream is no silence";
  Halt();
  Boot();
  EXPECT_TRUE(absl::IsAlreadyExists(registry_->Connect(second, std::make_shared<FakeWorker>())))
      << "nor is a restart of the server";
  clock_.Advance(registry_->options().suspect_after + std::chrono::seconds(1));
  EXPECT_TRUE(registry_->Connect(second, std::make_shared<FakeWorker>()).ok());
}

TEST_F(FleetTest, AJobOfAnotherProjectIsNotFound) {
  const std::string job = Submit("CPU", 1);
  EXPECT_TRUE(jobs_->Get("projects/default/jobs/" + job).ok());
  EXPECT_TRUE(absl::IsNotFound(jobs_->Get("projects/other/jobs/" + job).status()));
  EXPECT_TRUE(absl::IsNotFound(jobs_->Cancel("projects/other/jobs/" + job, "", false).status()));
  EXPECT_TRUE(absl::IsNotFound(jobs_->Events("projects/other/jobs/" + job, 0, 10).status()));
  EXPECT_EQ(State(job), v1::Job::PENDING);
}

TEST_F(FleetTest, AWorkerOfAnotherProtocolIsRefused) {
  v1::Register newer = RegisterOf("a", "CPU", 1);
  newer.set_protocol(kProtocol + 1);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(registry_->Connect(newer, std::make_shared<FakeWorker>())));
  v1::Register odd = RegisterOf("../a", "CPU", 1);
  EXPECT_TRUE(absl::IsInvalidArgument(registry_->Connect(odd, std::make_shared<FakeWorker>())));
}

TEST_F(FleetTest, ARepeatedRequestIdGivesTheSameJobAndAnotherJobIsRefused) {
  JobRecord job;
  job.id = "job-a";
  job.request_id = "r";
  job.request_hash = "h";
  job.spec.emplace();
  const std::string name = jobs_->Submit(job, {})->name();
  job.id = "job-b";
  EXPECT_EQ(jobs_->Submit(job, {})->name(), name);
  EXPECT_EQ(jobs_->Get("job-a")->name(), name);
  job.request_hash = "other";
  EXPECT_TRUE(absl::IsAlreadyExists(jobs_->Submit(job, {}).status()));
  EXPECT_TRUE(absl::IsNotFound(jobs_->Get("job-b").status()));
}

// Changes stored between the two halves of a tick win over the state that the first half read.
class BetweenTest : public FleetTest {
 protected:
  BetweenTest() {
    Join("a", "H100", 2);
    job_ = Submit("H100", 2);
    const absl::StatusOr<SchedulerInput> scene = reconciler_->Look(Now());
    EXPECT_EQ(scene->snapshot.pending.size(), 1u);
    scene_ = *scene;
  }
  int64_t Now() { return UnixMicros(clock_.Wall()); }
  void Decide() {
    ChangedJobs changed;
    const absl::Status decided = reconciler_->Decide(scene_, Now(), changed);
    EXPECT_TRUE(decided.ok()) << decided;
  }

  std::string job_;
  SchedulerInput scene_;
};

TEST_F(BetweenTest, UndisturbedTheJobIsPlaced) {
  Decide();
  EXPECT_EQ(State(job_), v1::Job::PREPARING);
}

TEST_F(BetweenTest, ACancelledJobIsNotPlaced) {
  ASSERT_TRUE(jobs_->Cancel(job_, "", false).ok());
  Decide();
  EXPECT_EQ(State(job_), v1::Job::CANCELLED);
}

TEST_F(BetweenTest, AHeldJobIsNotPlacedAndIsOnceReleased) {
  ASSERT_TRUE(jobs_->Hold(job_, JobManager::Holding::kHold, "not yet").ok());
  Decide();
  EXPECT_EQ(State(job_), v1::Job::PENDING);
  ASSERT_TRUE(jobs_->Hold(job_, JobManager::Holding::kRelease, "").ok());
  Tick();
  EXPECT_EQ(State(job_), v1::Job::PREPARING);
}

TEST_F(BetweenTest, NothingIsPlacedOnANodeThatWasCordoned) {
  ASSERT_TRUE(store_
                  ->Write([](Database& db) {
                    return store::PutHold(db, {.node = "a", .reason = "fan", .who = "ops"});
                  })
                  .ok());
  Decide();
  EXPECT_EQ(State(job_), v1::Job::PENDING);
}

TEST_F(BetweenTest, NothingIsPlacedOnAGpuThatFailed) {
  ASSERT_TRUE(store_
                  ->Write([](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(NodeRecord node, store::GetNode(db, "a"));
                    node.slots[1].healthy = false;
                    return store::PutSlots(db, "a", node.slots);
                  })
                  .ok());
  Decide();
  EXPECT_EQ(State(job_), v1::Job::PENDING);
}

TEST_F(BetweenTest, ASecondTickOnTheSameInputChangesNothing) {
  Decide();
  const std::string uid = Uid(job_);
  Decide();
  EXPECT_EQ(Uid(job_), uid);
  EXPECT_EQ(Job(job_).attempts_size(), 1);
}

TEST_F(BetweenTest, AReasonDoesNotOverwriteANewerState) {
  const std::string second = Submit("H100", 2);
  scene_ = reconciler_->Look(Now()).value();
  ASSERT_TRUE(jobs_->Cancel(second, "", false).ok());
  const std::string reason = Job(second).reason();
  Decide();
  EXPECT_EQ(Job(second).reason(), reason);
}

}  // namespace
}  // namespace sft::server
