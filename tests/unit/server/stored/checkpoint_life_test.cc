// Life of checkpoints, and resuming from them, in the server's core, stepped by hand.

#include "server/store/checkpoints.h"
#include "server/store/schedules.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

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

// What a node had sent of a step when a newer one overtook it no longer counts against its limit.
TEST_F(LifeTest, FilesOfAnOvertakenStepAreForgottenWhenANewerOneIsCommitted) {
  Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Sender sender;
  sender.node = "a";
  sender.attempt_uid = Uid(job);
  const std::string key = sender.KeyOf(v1::UploadBlobRequest::CHECKPOINT).value();
  const auto send = [&](const std::string& content, size_t bytes) {
    auto upload =
        blobs_->Begin(io::Sha256Hex(content), static_cast<int64_t>(content.size()), 0, key);
    EXPECT_TRUE(upload.ok()) << upload.status();
    EXPECT_TRUE((*upload)->Append(content.substr(0, bytes)).ok());
    return *std::move(upload);
  };
  // Of step 10 one file came whole and one in part.
  const auto whole = send("whole", 5);
  ASSERT_TRUE(whole->Finish([](const std::string&) { return absl::OkStatus(); }).ok());
  ASSERT_TRUE(blobs_->MarkBrought(io::Sha256Hex("whole"), key).ok());
  send("in part", 3);
  const auto under_way = send("under way", 4);
  ASSERT_EQ(blobs_->Held(key).value().size(), 3u);

  ASSERT_TRUE(Commit(job, 20));
  const auto held = blobs_->Held(key).value();
  EXPECT_FALSE(held.contains(io::Sha256Hex("whole")));
  EXPECT_FALSE(held.contains(io::Sha256Hex("in part")));
  EXPECT_TRUE(held.contains(io::Sha256Hex("under way")));
  EXPECT_TRUE(held.contains(io::Sha256Hex("state 20")));
  ASSERT_TRUE(Commit(job, 20)) << "a repeat still has its files";
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

TEST_F(LifeTest, CheckpointsOfAnEndedJobAreDeletedAfterTheirTime) {
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

TEST_F(LifeTest, AnAttemptThatBeganAnewKeepsItsCheckpointsBesideOnesOutOfReach) {
  auto a = Join("a", "CPU", 1);
  const std::string job =
      SubmitWith(R"({"compute":{"unreachable_after":"1m"},"checkpoint":{"save_total_limit":2}})");
  Tick();
  Say("a", a, job, S::RUNNING, v1::Verdict::NONE, "", 600);
  for (const int64_t step : {400, 500, 600}) CommitOnDisk(job, step, "a");
  const auto b = Join("b", "CPU", 1);
  PassSilently(minutes(3), "b", b);
  ASSERT_EQ(Attempt(job), 2);
  EXPECT_EQ(b->Wanted(Uid(job))->dispatch().resume().step(), 0) << "a alone has them";
  Say("b", b, job, S::RUNNING, v1::Verdict::NONE, "", 100);
  CommitOnDisk(job, 100, "b");
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{600, 100}));
  CommitOnDisk(job, 200, "b");
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{200, 100}));
  ASSERT_TRUE(checkpoints_->Sweep().ok());
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{200, 100}));
  Fail("b", b, job);
  EXPECT_NE(Job(job).attempts(1).verdict().action().find("2 of 10"), std::string::npos);
  clock_.Advance(seconds(30));
  ASSERT_TRUE(Observe("b", b, {}).ok());
  Tick();
  ASSERT_EQ(Attempt(job), 3);
  EXPECT_EQ(b->Wanted(Uid(job))->dispatch().resume().step(), 200);
}

TEST_F(LifeTest, AJobGoesOnFromTheFurthestCheckpointThatHasComeBack) {
  const auto a = Join("a", "CPU", 1);
  const std::string job =
      SubmitWith(R"({"compute":{"unreachable_after":"1m"},"checkpoint":{"save_total_limit":2}})");
  Tick();
  Say("a", a, job, S::RUNNING, v1::Verdict::NONE, "", 600);
  for (const int64_t step : {500, 600}) CommitOnDisk(job, step, "a");
  const auto b = Join("b", "CPU", 1);
  PassSilently(minutes(3), "b", b);
  Say("b", b, job, S::RUNNING, v1::Verdict::NONE, "", 100);
  CommitOnDisk(job, 100, "b");
  const auto again = Join("a", "CPU", 1, "life-2");
  ASSERT_TRUE(Observe("a", again, {}).ok());
  Fail("b", b, job);
  clock_.Advance(seconds(30));
  ASSERT_TRUE(Observe("b", b, {}).ok());
  ASSERT_TRUE(Observe("a", again, {}).ok());
  Tick();
  ASSERT_EQ(Attempt(job), 3);
  ASSERT_NE(again->Wanted(Uid(job)), nullptr);
  EXPECT_EQ(again->Wanted(Uid(job))->dispatch().resume().step(), 600);
  ASSERT_TRUE(checkpoints_->Sweep().ok());
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{600, 100}));
  Say("a", again, job, S::RUNNING, v1::Verdict::NONE, "", 700);
  CommitOnDisk(job, 700, "a");
  EXPECT_EQ(Steps(job), (std::vector<int64_t>{700, 600}));
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

TEST_F(LifeTest, AResumeOfAResumeWithoutCheckpointsGoesOnFromTheStepOfTheFirst) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  for (const int64_t step : {10, 20, 30}) ASSERT_TRUE(Commit(job, step));
  Fail("a", worker, job, "nan_loss", v1::Verdict::USER);
  const std::string first = Resume(job, 20);
  ASSERT_TRUE(jobs_->Cancel(first, "", false).ok());
  const std::string second = Resume(first);
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(second))->dispatch().resume().step(), 20);
  EXPECT_EQ(Job(second).resumed_step(), 20);
}

TEST_F(LifeTest, AResumedJobWhoseOwnCheckpointIsDamagedGoesOnFromThatOfItsOrigin) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(Commit(job, 10));
  Fail("a", worker, job, "nan_loss", v1::Verdict::USER);
  const std::string next = Resume(job);
  Tick();
  ASSERT_TRUE(Commit(next, 20));
  Fail("a", worker, next);
  clock_.Advance(seconds(6));
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(next))->dispatch().resume().step(), 20);
  Fail("a", worker, next, "checkpoint_damaged");
  clock_.Advance(seconds(11));
  Tick();
  ASSERT_EQ(Attempt(next), 3);
  EXPECT_EQ(worker->Wanted(Uid(next))->dispatch().resume().step(), 10);
  ASSERT_TRUE(jobs_->Cancel(next, "", false).ok());
  Fail("a", worker, next, "cancelled", v1::Verdict::USER);
  const std::string last = Resume(next);
  EXPECT_EQ(Job(last).resumed_from(), "projects/default/jobs/" + job);
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(last))->dispatch().resume().step(), 10);
}

TEST_F(LifeTest, AResumeFromADamagedCheckpointIsRefusedWithTheStepsThatAreGood) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(Commit(job, 10));
  ASSERT_TRUE(Commit(job, 20));
  const auto mark = [&](int64_t step) {
    const std::string uid = Uid(job);
    EXPECT_TRUE(store_
                    ->Write([&](Database& db) {
                      return store::SetCheckpointProblem(db, uid, step, "rank-0 was cut short");
                    })
                    .ok());
  };
  mark(20);
  Fail("a", worker, job, "nan_loss", v1::Verdict::USER);
  const auto refused = [&](int64_t step) {
    v1::ResumeJobRequest request;
    request.set_name(job);
    request.set_step(step);
    const absl::Status status = jobs_->Resume(request, "ann").status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    return std::string(Message(status));
  };
  EXPECT_EQ(refused(20), "the checkpoint of step 20 of job " + job +
                             " cannot be used: rank-0 was cut short; there is: 10");
  EXPECT_EQ(Job(Resume(job)).resumed_from(), "projects/default/jobs/" + job) << "of step 10";
  mark(10);
  EXPECT_EQ(refused(0),
            "no checkpoint of job " + job + " can be used (rank-0 was cut short): submit it again");
}

TEST_F(LifeTest, AResumeKeepsToTheLimitsOfItsProject) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(Commit(job, 10));
  Fail("a", worker, job, "nan_loss", v1::Verdict::USER);
  const auto resume = [&](const std::string& id, const ProjectLimits& limits) {
    EXPECT_TRUE(store_->Write([&](Database& db) { return store::PutLimits(db, limits); }).ok());
    v1::ResumeJobRequest request;
    request.set_name(job);
    request.set_request_id(id);
    return jobs_->Resume(request, "ann").status();
  };
  const absl::Status low = resume("r-1", {.project = "default", .max_priority = 0});
  EXPECT_TRUE(absl::IsFailedPrecondition(low)) << low;
  EXPECT_NE(Message(low).find("may not use normal, but up to low"), std::string_view::npos) << low;
  const ProjectLimits one{.project = "default", .max_pending = 1};
  EXPECT_TRUE(resume("r-2", one).ok());
  EXPECT_TRUE(resume("r-2", one).ok()) << "a repeat";
  EXPECT_TRUE(absl::IsResourceExhausted(resume("r-3", one)));
}

TEST_F(LifeTest, AResumeMayHaveAnotherTimeLimit) {
  const auto worker = Join("a", "CPU", 1);
  JobRecord record;
  record.id = "job-short";
  record.project = "default";
  record.gpu_type = "CPU";
  record.spec.emplace().scheduling.time_limit = "1m";
  record.resolved_values = {{"scheduling.time_limit", "1m", "line 3"}};
  record.schedule.time_limit_us = 60'000'000;
  record.schedule.warn_before_us = 30'000'000;
  ASSERT_TRUE(jobs_->Submit(record, {}).ok());
  Tick();
  ASSERT_TRUE(Commit(record.id, 10));
  Fail("a", worker, record.id, "time_limit", v1::Verdict::USER);
  v1::ResumeJobRequest request;
  request.set_name(record.id);
  request.set_request_id("longer");
  request.set_time_limit_seconds(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(jobs_->Resume(request, "ann").status()));
  const auto limit_of = [&](int64_t seconds) {
    request.set_time_limit_seconds(seconds);
    request.set_request_id("limit " + std::to_string(seconds));
    const v1::Job next = jobs_->Resume(request, "ann").value();
    EXPECT_EQ(jobs_->Resume(request, "ann")->name(), next.name()) << "a repeat";
    ScheduleRecord schedule;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      const std::string id = next.name().substr(next.name().rfind('/') + 1);
                      SFT_ASSIGN_OR_RETURN(schedule, store::GetSchedule(db, id));
                      return absl::OkStatus();
                    })
                    .ok());
    return std::tuple(schedule.time_limit_us, schedule.warn_before_us, next.resolved(0).value(),
                      ParseJson(next.resolved_json())["scheduling"]["time_limit"]);
  };
  EXPECT_EQ(limit_of(7200), std::tuple(7'200'000'000, 30'000'000, "2h", "2h"));
  EXPECT_EQ(limit_of(0), std::tuple(0, 30'000'000, "0s", "0s"));
  EXPECT_EQ(std::get<1>(limit_of(20)), 10'000'000) << "at most half of it";
  request.set_time_limit_seconds(40);
  EXPECT_TRUE(absl::IsAlreadyExists(jobs_->Resume(request, "ann").status())) << "another request";
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

TEST_F(LifeTest, ACheckpointThatAnAttemptDidNotLiveToWriteIsAskedOfTheNext) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  v1::CheckpointJobRequest request;
  request.set_name(job);
  request.set_request_id("r-1");
  ASSERT_TRUE(checkpoints_->Ask(request).ok());
  const auto restart = [&] {
    Fail("a", worker, job);
    clock_.Advance(seconds(11));
    Tick();
    Say("a", worker, job, S::RUNNING);
  };
  restart();
  EXPECT_EQ(worker->Wanted(Uid(job))->checkpoints_asked(), 1);
  ASSERT_TRUE(checkpoints_->Ask(request).ok());
  Tick();
  EXPECT_EQ(worker->Wanted(Uid(job))->checkpoints_asked(), 1) << "a repeat";
  v1::CommitCheckpointRequest commit = CommitOf(job, 10, "a", "state 10");
  commit.set_reason("asked");
  ASSERT_TRUE(checkpoints_->Commit(commit).ok());
  restart();
  ASSERT_EQ(Attempt(job), 3);
  EXPECT_EQ(worker->Wanted(Uid(job))->checkpoints_asked(), 0) << "it was answered";
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

}  // namespace
}  // namespace sft::server
