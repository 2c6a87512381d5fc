// Obstacles that stop a job: each ends some time, is shown as the reason meanwhile, and names who
// lost the thing.

#include <fmt/format.h>

#include "server/fleet/describe_node.h"
#include "server/stored/artifacts.h"
#include "server/stored/uploads.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {
namespace {

class TroubleTest : public LifeTest {
 protected:
  TroubleTest()
      : data_(BlobStore::Open(dir_ + "/blobs").value()),
        relay_(*registry_),
        artifacts_(*store_, clock_, *data_, *blobs_, relay_, hub_) {}

  absl::Status Download(const std::string& sha256, int64_t offset = 0) {
    received_.clear();
    return artifacts_.DownloadBlob(sha256, offset, [&](const v1::DownloadChunk& chunk) {
      received_ += chunk.data();
      return true;
    });
  }
  // A project's upload of a data set.
  void Upload(const std::string& content) {
    UploadSession session(*data_, *blobs_, *store_, clock_, Sender{"ann"});
    v1::UploadBlobRequest request;
    request.set_sha256(io::Sha256Hex(content));
    request.set_size(static_cast<int64_t>(content.size()));
    request.set_purpose(v1::UploadBlobRequest::DATASET);
    request.set_data(content);
    ASSERT_TRUE(session.Take(request).ok());
    const auto finished = session.Finish();
    ASSERT_TRUE(finished.ok()) << finished.status();
  }
  void Damage(const std::string& path) {
    std::string bytes = io::ReadFile(path).value();
    bytes[bytes.size() / 2] ^= 1;
    ASSERT_TRUE(io::WriteFileAtomic(path, bytes).ok());
  }
  std::string Unusable(const std::string& node) {
    std::string text;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const NodeContext context,
                                           ReadNodeContext(db, *registry_));
                      SFT_ASSIGN_OR_RETURN(const NodeRecord record, store::GetNode(db, node));
                      SFT_ASSIGN_OR_RETURN(const v1::Node view,
                                           DescribeNode(db, record, context, *registry_));
                      text = view.unusable();
                      return absl::OkStatus();
                    })
                    .ok());
    return text;
  }

  std::unique_ptr<BlobStore> data_;
  FileRelay relay_;
  Artifacts artifacts_;
  std::string received_;
};

TEST_F(TroubleTest, ADamagedDataSetIsPutAsideAndItsOwnerCanUploadItAgain) {
  const std::string rows = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n", hash = io::Sha256Hex(rows);
  Upload(rows);
  ASSERT_TRUE(Download(hash).ok());
  EXPECT_EQ(received_, rows);
  Damage(data_->PathOf(hash).value());
  const absl::Status damaged = Download(hash);
  EXPECT_TRUE(absl::IsDataLoss(damaged)) << damaged;
  EXPECT_NE(Message(damaged).find("damaged on the server's disk"), std::string::npos) << damaged;
  EXPECT_TRUE(absl::IsNotFound(Download(hash)));
  EXPECT_FALSE(
      FindUpload(*data_, *store_, Sender{"ann"}, v1::UploadBlobRequest::DATASET, hash)->complete);
  EXPECT_EQ(data_->damaged(), 1);
  Upload(rows);
  EXPECT_TRUE(Download(hash).ok());
  EXPECT_TRUE(
      FindUpload(*data_, *store_, Sender{"ann"}, v1::UploadBlobRequest::DATASET, hash)->complete);
}

TEST_F(TroubleTest, ALostDataSetEndsTheJobWithoutBlameOfItsOwnerOrANode) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  v1::AttemptStatus status = StatusOf(Uid(job), S::DONE, "dataset_lost");
  status.mutable_verdict()->set_domain(v1::Verdict::INFRASTRUCTURE);
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  Tick();
  EXPECT_EQ(State(job), v1::Job::FAILED) << "no restart brings it back";
  EXPECT_EQ(Job(job).verdict().code(), "dataset_lost");
  EXPECT_NE(Job(job).verdict().action().find("uploaded again"), std::string::npos);
}

TEST_F(TroubleTest, ADamagedCheckpointFallsBackToAnOlderGoodOne) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  ASSERT_TRUE(Commit(job, 10));
  ASSERT_TRUE(Commit(job, 20));
  const std::string hash = io::Sha256Hex("state 20");
  Damage(blobs_->PathOf(hash).value());
  EXPECT_TRUE(Download(hash, 4).ok()) << "a part of it tells nothing";
  EXPECT_TRUE(absl::IsDataLoss(Download(hash)));
  const v1::ListCheckpointsResponse list = checkpoints_->List(job).value();
  EXPECT_NE(list.checkpoints(0).problem().find("damaged"), std::string::npos)
      << list.ShortDebugString();
  Fail("a", worker, job);
  clock_.Advance(minutes(1));
  ASSERT_TRUE(Observe("a", worker, {}).ok());
  Tick();
  ASSERT_EQ(State(job), v1::Job::PREPARING) << Job(job).reason();
  EXPECT_EQ(worker->Wanted(Uid(job))->dispatch().resume().step(), 10);
}

// Two jobs on one node; the first is in a state that its report cannot follow.
TEST_F(TroubleTest, AnInvalidReportOfOneAttemptDoesNotAffectTheOthers) {
  const auto worker = Join("a", "CPU", 2);
  const std::string first = Submit("CPU", 1), second = Submit("CPU", 1);
  Tick();
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) {
                    return db.Execute(fmt::format("UPDATE jobs SET state = {} WHERE id = '{}'",
                                                  static_cast<int>(JobState::kSucceeded), first)
                                          .c_str());
                  })
                  .ok());
  std::vector<v1::AttemptStatus> observed;
  for (const std::string& job : {first, second}) {
    v1::AttemptStatus& status = observed.emplace_back();
    status.set_attempt_uid(Uid(job));
    status.set_epoch(1);
    status.set_state(S::RUNNING);
  }
  EXPECT_TRUE(Observe("a", worker, observed).ok());
  EXPECT_EQ(State(second), v1::Job::RUNNING);
  EXPECT_EQ(registry_->refusals().counts().at("a"), 1);
  // Nothing of the first was stored: half of it would be stored as seen, and never accepted again.
  EXPECT_TRUE(Observe("a", worker, observed).ok());
  EXPECT_EQ(registry_->refusals().counts().at("a"), 2);
}

TEST_F(TroubleTest, AnAttemptEndsEvenWithImplausibleFigures) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  v1::AttemptStatus status;
  status.set_attempt_uid(Uid(job));
  status.set_epoch(1);
  status.set_state(S::DONE);
  status.mutable_progress()->set_step(-3);
  status.mutable_verdict()->set_domain(v1::Verdict::USER);
  status.mutable_verdict()->set_code("nan_loss");
  EXPECT_TRUE(Observe("a", worker, {status}).ok());
  EXPECT_EQ(State(job), v1::Job::FAILED);
  EXPECT_EQ(registry_->refusals().counts().at("a"), 1);
}

TEST_F(TroubleTest, ANodesRetriesAreShownAsTheJobsReason) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  v1::AttemptStatus status = StatusOf(Uid(job), S::STAGING);
  status.set_retrying("staging failed twice: its hash differs; tries again in 8 s");
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  Tick();
  EXPECT_EQ(Job(job).reason(), "a: staging failed twice: its hash differs; tries again in 8 s");
  status.clear_retrying();
  ASSERT_TRUE(Observe("a", worker, {status}).ok());
  Tick();
  EXPECT_EQ(Job(job).reason(), "");
}

TEST_F(TroubleTest, ANodeThatCannotStartRanksGetsNothingUntilItCan) {
  v1::Register hello = RegisterOf("a", "CPU", 2);
  hello.set_rank_problem("ranks cannot start: `sft-rank --version` was killed by signal 9");
  const auto worker = std::make_shared<FakeWorker>();
  ASSERT_TRUE(registry_->Connect(hello, worker).ok());
  const std::string job = Submit("CPU", 1);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_NE(Job(job).reason().find("not able to start ranks: ranks cannot start: `sft-rank"),
            std::string::npos)
      << Job(job).reason();
  EXPECT_NE(Unusable("a").find("killed by signal 9"), std::string::npos) << Unusable("a");
  v1::Observed observed;
  const int wakes = wakes_;
  ASSERT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
  EXPECT_GT(wakes_, wakes) << "it can now: somebody may be waiting";
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING);
  EXPECT_EQ(Unusable("a"), "");
}

TEST_F(TroubleTest, AGangWaitsUntilEnoughNodesRunOneBuildOfTheRanks) {
  const auto join = [&](const std::string& node, const std::string& build) {
    v1::Register hello = RegisterOf(node, "CPU", 1);
    hello.set_rank_build(build);
    const auto worker = std::make_shared<FakeWorker>();
    EXPECT_TRUE(registry_->Connect(hello, worker).ok());
    return worker;
  };
  const auto a = join("a", "1.1"), b = join("b", "");
  const std::string job = Submit("CPU", 1, 2);
  Tick();
  EXPECT_EQ(State(job), v1::Job::PENDING);
  EXPECT_NE(Job(job).reason().find("sft-rank 1.1"), std::string::npos) << Job(job).reason();
  v1::Observed upgraded;
  upgraded.set_rank_build("1.1");
  const int wakes = wakes_;
  ASSERT_TRUE(registry_->Observe("b", b.get(), upgraded).ok());
  EXPECT_GT(wakes_, wakes) << "somebody may be waiting";
  Tick();
  EXPECT_EQ(State(job), v1::Job::PREPARING) << Job(job).reason();
}

TEST_F(TroubleTest, ANodeThatFailsEverythingAtOnceRestsAlsoWhereItIsTheOnlyOne) {
  const auto worker = Join("a", "CPU", 1);
  for (int i = 0; i < 8; ++i) Submit("CPU", 1);
  int attempts = 0;
  const auto fail_all = [&](int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      clock_.Advance(std::chrono::milliseconds(200));
      std::vector<v1::AttemptStatus> statuses;
      for (const auto& wanted : worker->desired.attempts()) {
        if (wanted.intent() != D::RUN) continue;
        v1::AttemptStatus status = StatusOf(wanted.attempt_uid(), S::DONE, "staging_failed");
        status.set_epoch(wanted.epoch());
        status.mutable_verdict()->set_domain(v1::Verdict::INFRASTRUCTURE);
        statuses.push_back(status);
        ++attempts;
      }
      ASSERT_TRUE(Observe("a", worker, statuses).ok());
      Tick();
    }
  };
  fail_all(40);
  EXPECT_EQ(attempts, 3) << "in eight seconds";
  EXPECT_NE(Unusable("a").find("3 attempts in a row failed on it before they trained (3 x "
                               "staging_failed)"),
            std::string::npos)
      << Unusable("a");
  EXPECT_NE(Job("job-8").reason().find("resting until"), std::string::npos)
      << Job("job-8").reason();
  for (int second = 0; second < 60; ++second) {
    clock_.Advance(seconds(1));
    ASSERT_TRUE(Observe("a", worker, {}).ok());
    Tick();
  }
  EXPECT_EQ(Unusable("a"), "");
  fail_all(40);
  EXPECT_EQ(attempts, 4) << "one more, and it rests for longer";
}

TEST_F(TroubleTest, AConnectedNodeThatDoesNotTakeUpItsPartIsGivenUp) {
  const auto worker = Join("a", "CPU", 1), other = Join("b", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  const auto wait = [&](int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      clock_.Advance(seconds(4));
      reconciler_->Beat();
      ASSERT_TRUE(Observe("a", worker, {}).ok());
      ASSERT_TRUE(Observe("b", other, {}).ok());
      Tick();
    }
  };
  wait(20);
  EXPECT_EQ(Job(job).reason(), "waiting for a to take it up: look at its sft-worker");
  wait(160);
  EXPECT_EQ(Attempt(job), 2);
  EXPECT_NE(other->Wanted(Uid(job)), nullptr) << Job(job).reason();
}

TEST_F(TroubleTest, AnEndIsStoredAsOfWhenItHappened) {
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  clock_.Advance(seconds(10));
  Say("a", worker, job, S::RUNNING);
  clock_.Advance(minutes(5));
  const int64_t ended_us = UnixMicros(clock_.Wall());
  // Then this server is suspended for half an hour. The node's clock is a minute fast.
  clock_.Advance(minutes(30));
  const int64_t ahead_us = 60'000'000;
  v1::Observed observed;
  observed.set_time_us(UnixMicros(clock_.Wall()) + ahead_us);
  *observed.add_attempts() = StatusOf(Uid(job), S::DONE, "succeeded");
  observed.mutable_attempts(0)->set_ended_us(ended_us + ahead_us);
  ASSERT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
  Tick();
  ASSERT_EQ(State(job), v1::Job::SUCCEEDED);
  EXPECT_EQ(Job(job).end_time().seconds(), ended_us / 1'000'000);
}

TEST_F(TroubleTest, AnImplausibleEndTimeIsBounded) {
  const auto worker = Join("a", "CPU", 1);
  const auto end_of = [&](int64_t told_us) {
    const std::string job = Submit("CPU", 1);
    Tick();
    clock_.Advance(seconds(10));
    Say("a", worker, job, S::RUNNING);
    const int64_t started_s = Job(job).start_time().seconds();
    clock_.Advance(minutes(5));
    v1::Observed observed;
    observed.set_time_us(UnixMicros(clock_.Wall()));
    *observed.add_attempts() = StatusOf(Uid(job), S::DONE, "succeeded");
    observed.mutable_attempts(0)->set_ended_us(told_us);
    EXPECT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
    Tick();
    EXPECT_TRUE(Observe("a", worker, {}).ok());
    return Job(job).end_time().seconds() - started_s;
  };
  EXPECT_EQ(end_of(1), 0) << "not before its start";
  EXPECT_EQ(end_of(int64_t{1} << 60), 300) << "not after it was heard";
  EXPECT_EQ(end_of(0), 300) << "an older worker does not say";
}

TEST_F(TroubleTest, DelayedReportsDoNotMakeANodesClockLookSlow) {
  const auto worker = Join("a", "CPU", 1);
  const auto report = [&](int64_t at_us) {
    v1::Observed observed;
    observed.set_time_us(at_us);
    ASSERT_TRUE(registry_->Observe("a", worker.get(), observed).ok());
  };
  report(UnixMicros(clock_.Wall()));
  // One more every five seconds, all of which are read when this server continues.
  std::vector<int64_t> written;
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(seconds(5));
    written.push_back(UnixMicros(clock_.Wall()));
  }
  for (const int64_t at_us : written) {
    report(at_us);
    EXPECT_DOUBLE_EQ(registry_->Get("a").clock_offset.value(), 0) << "also before the freshest";
  }
  // A clock that is really slow is detected.
  for (int i = 0; i < 30; ++i) {
    clock_.Advance(seconds(5));
    report(UnixMicros(clock_.Wall()) - 600'000'000);
  }
  EXPECT_DOUBLE_EQ(registry_->Get("a").clock_offset.value(), -600);
}

}  // namespace
}  // namespace sft::server
