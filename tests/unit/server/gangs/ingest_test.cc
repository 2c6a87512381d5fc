#include "server/gangs/ingest.h"

#include <limits>

#include "server/core/convert.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {
namespace {

class IngestTest : public FleetTest {
 protected:
  IngestTest()
      : logs_(dir_ + "/logs"),
        metrics_(dir_ + "/metrics"),
        tensorboard_(dir_ + "/tensorboard"),
        ingest_(*store_, clock_, logs_, metrics_, tensorboard_, hub_, &registry_->refusals()) {
    worker_ = Join("a", "CPU", 2);
    job_ = Submit("CPU", 2);
    Tick();
    uid_ = Uid(job_);
  }

  v1::AppendLogRequest Log(int64_t offset, const std::string& data, bool end = false) {
    v1::AppendLogRequest request;
    request.set_attempt_uid(uid_);
    request.set_epoch(1);
    request.set_rank(0);
    request.set_offset(offset);
    request.set_data(data);
    request.set_end_of_file(end);
    request.set_node("a");
    return request;
  }
  v1::AppendEventsRequest Steps(int64_t begin, int64_t end, int64_t step) {
    v1::AppendEventsRequest request;
    request.set_attempt_uid(uid_);
    request.set_epoch(1);
    request.set_rank(0);
    request.set_node("a");
    request.set_begin_offset(begin);
    request.set_end_offset(end);
    v1::Metric* metric = request.add_events()->mutable_metric();
    metric->set_step(step);
    metric->set_total_steps(10);
    metric->set_loss(0.5);
    metric->set_step_seconds(2);
    return request;
  }

  LogStore logs_;
  MetricLog metrics_;
  TensorBoard tensorboard_;
  Ingest ingest_;
  std::shared_ptr<FakeWorker> worker_;
  std::string job_, uid_;
};

TEST_F(IngestTest, ALogIsFinalWhenItsEndIsAcknowledged) {
  EXPECT_EQ(ingest_.AppendLog(Log(0, "hello\n"))->offset(), 6);
  v1::ReadLogRequest read;
  read.set_name(job_);
  EXPECT_FALSE(ingest_.FindLog(read)->ended);
  // An end of file after a gap does not count.
  EXPECT_EQ(ingest_.AppendLog(Log(10, "x", true))->offset(), 6);
  EXPECT_FALSE(ingest_.FindLog(read)->ended);
  EXPECT_EQ(ingest_.AppendLog(Log(6, "bye\n", true))->offset(), 10);
  EXPECT_TRUE(ingest_.FindLog(read)->ended);
  EXPECT_EQ(logs_.Read(ingest_.FindLog(read)->stream, 0, 100)->bytes, "hello\nbye\n");
}

TEST_F(IngestTest, MetricsThatTheServerHasLostAreAskedForAgain) {
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(ingest_.AppendEvents(Steps(i * 10, i * 10 + 10, i + 1))->offset(), i * 10 + 10);
  }
  ASSERT_TRUE(io::RemoveAll(dir_ + "/metrics/" + job_).ok());
  // Metrics begin where the acknowledged part ends: it must begin anew.
  EXPECT_EQ(ingest_.AppendEvents(Steps(50, 60, 6))->offset(), 0);
  EXPECT_EQ(ingest_.AppendEvents(Steps(50, 60, 6))->offset(), 0) << "still";
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(ingest_.AppendEvents(Steps(i * 10, i * 10 + 10, i + 1))->offset(), i * 10 + 10);
  }
  // A piece that crosses the acknowledged offset: notes behind it are taken with the next piece.
  EXPECT_EQ(ingest_.AppendEvents(Steps(40, 60, 5))->offset(), 50);
  EXPECT_EQ(ingest_.AppendEvents(Steps(50, 60, 6))->offset(), 60);
  EXPECT_EQ(metrics_.Count(job_).value(), 6);
  int told = 0;
  const auto events = jobs_->Events(job_, 0, 100).value();
  for (const auto& event : events) told += event.type() == "warning" ? 1 : 0;
  EXPECT_EQ(told, 1);
}

// A validation is one point to clients, whatever part of the curve they ask for.
TEST_F(IngestTest, AValidationIsGivenWithAllOfItsValuesOrLater) {
  for (int step = 1; step <= 3; ++step) {
    v1::AppendEventsRequest request = Steps(step * 10 - 10, step * 10, step);
    v1::Metric& eval = *request.add_events()->mutable_metric();
    eval.set_step(step);
    eval.set_is_eval(true);
    eval.set_val_loss(1.5);
    for (const char* name : {"val.rouge_l", "val.f1"}) {
      v1::NamedValue& value = *eval.add_values();
      value.set_name(name);
      value.set_value(step);
    }
    ASSERT_EQ(ingest_.AppendEvents(request)->offset(), step * 10);
  }
  EXPECT_EQ(metrics_.Count(job_).value(), 12);
  for (int most = 4; most <= 13; ++most) {
    std::vector<v1::Metric> all;
    for (int64_t index = 0; index < 12;) {
      const auto part = ingest_.ReadCurve(job_, index, most, false).value();
      ASSERT_GT(part.next_index, index);
      index = part.next_index;
      for (const v1::Metric& metric : MetricsOf(part.points)) all.push_back(metric);
    }
    ASSERT_EQ(all.size(), 6u) << most;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].is_eval(), i % 2 == 1);
      ASSERT_EQ(all[i].values_size(), i % 2 == 1 ? 2 : 0) << most;
    }
    EXPECT_EQ(all[5].values(1).name(), "val.f1");
    EXPECT_EQ(all[5].values(1).value(), 3);
    EXPECT_EQ(all[5].val_loss(), 1.5);
  }
  const v1::Job job = jobs_->Get("projects/default/jobs/" + job_).value();
  EXPECT_EQ(job.progress().values(0).name(), "val.rouge_l");
  EXPECT_EQ(job.progress().values(0).value(), 3);
  EXPECT_EQ(job.progress().val_loss(), 1.5);
}

TEST_F(IngestTest, MetricsThatNobodyHasAnyMoreAreNotAskedForForEver) {
  ASSERT_EQ(ingest_.AppendEvents(Steps(0, 10, 1))->offset(), 10);
  ASSERT_EQ(ingest_.AppendEvents(Steps(10, 20, 2))->offset(), 20);
  ASSERT_TRUE(io::RemoveAll(dir_ + "/metrics/" + job_).ok());
  EXPECT_EQ(ingest_.AppendEvents(Steps(20, 30, 3))->offset(), 0);
  v1::AppendEventsRequest empty = Steps(0, 20, 1);
  empty.clear_events();
  EXPECT_EQ(ingest_.AppendEvents(empty)->offset(), 20);
  EXPECT_EQ(ingest_.AppendEvents(Steps(20, 30, 3))->offset(), 30);
  EXPECT_EQ(metrics_.Count(job_).value(), 1);
}

TEST_F(IngestTest, AMetricThatIsDamagedAtTheEndIsAskedForAgain) {
  ASSERT_EQ(ingest_.AppendEvents(Steps(0, 10, 1))->offset(), 10);
  ASSERT_EQ(ingest_.AppendEvents(Steps(10, 20, 2))->offset(), 20);
  const std::string path = dir_ + "/metrics/" + job_ + "/00000000000000000000.seg";
  std::string bytes = io::ReadFile(path).value();
  bytes[MetricLog::kRecordBytes] ^= 1;
  ASSERT_TRUE(io::WriteFileAtomic(path, bytes).ok());
  MetricLog metrics(dir_ + "/metrics");  // of the next server process
  TensorBoard tensorboard(dir_ + "/tensorboard");
  Ingest ingest(*store_, clock_, logs_, metrics, tensorboard, hub_);
  EXPECT_EQ(ingest.AppendEvents(Steps(20, 30, 3))->offset(), 0);
  EXPECT_EQ(ingest.AppendEvents(Steps(0, 10, 1))->offset(), 10);
  EXPECT_EQ(ingest.AppendEvents(Steps(10, 20, 2))->offset(), 20);
  EXPECT_EQ(ingest.AppendEvents(Steps(20, 30, 3))->offset(), 30);
  EXPECT_EQ(metrics.Count(job_).value(), 3);
}

TEST_F(IngestTest, ALogThatWasRemovedBeneathTheServerIsAskedForAgain) {
  ASSERT_EQ(ingest_.AppendLog(Log(0, "hello\n"))->offset(), 6);
  ASSERT_TRUE(io::RemoveAll(dir_ + "/logs").ok());
  EXPECT_EQ(ingest_.AppendLog(Log(6, "bye\n"))->offset(), 0);
}

TEST_F(IngestTest, ReportsOfAnotherEpochNodeOrAttemptAreRefused) {
  v1::AppendLogRequest request = Log(0, "x");
  request.set_epoch(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(ingest_.AppendLog(request).status()));
  request = Log(0, "x");
  request.set_node("b");
  EXPECT_TRUE(absl::IsFailedPrecondition(ingest_.AppendLog(request).status()));
  request = Log(0, "x");
  request.set_attempt_uid("../../etc");
  EXPECT_TRUE(absl::IsNotFound(ingest_.AppendLog(request).status()));
}

TEST_F(IngestTest, ALogOfARankThatTheNodeWasNotGivenIsRefusedAndMakesNoFile) {
  for (const int rank : {2, 7, -2, -9}) {
    v1::AppendLogRequest request = Log(0, "x");
    request.set_rank(rank);
    EXPECT_TRUE(absl::IsInvalidArgument(ingest_.AppendLog(request).status())) << rank;
  }
  v1::AppendLogRequest request = Log(int64_t{1} << 62, "x");
  request.set_skipped_from(0);
  EXPECT_TRUE(absl::IsInvalidArgument(ingest_.AppendLog(request).status()));
  EXPECT_FALSE(io::Exists(dir_ + "/logs/" + uid_));
}

TEST_F(IngestTest, ImplausibleStepsAreLeftOutAndTheRestIsStoredOnce) {
  v1::AppendEventsRequest request = Steps(0, 100, 1);
  v1::Metric* metric = request.add_events()->mutable_metric();
  metric->set_step(std::numeric_limits<int64_t>::max());
  metric->mutable_time()->set_seconds(std::numeric_limits<int64_t>::max());
  v1::RankEvent* note = request.add_events();
  note->set_type("warning\x1b[2J");
  note->set_note("never seen");
  note = request.add_events();
  note->set_note(std::string(100'000, 'n'));
  *request.add_events() = Steps(0, 100, 2).events(0);
  EXPECT_EQ(ingest_.AppendEvents(request)->offset(), 100) << "it would come for ever";
  EXPECT_EQ(metrics_.Count(job_).value(), 2);
  EXPECT_EQ(Job(job_).progress().step(), 2);
  const auto events = jobs_->Events(job_, 0, 100).value();
  EXPECT_EQ(events.back().type(), "note");
  EXPECT_LT(events.back().message().size(), 17'000u);
  EXPECT_EQ(registry_->refusals().counts()["a"], 2);
  request = Steps(100, int64_t{1} << 62, 3);
  EXPECT_TRUE(absl::IsInvalidArgument(ingest_.AppendEvents(request).status()));
  request = Steps(100, 200, 3);
  request.set_rank(5);
  EXPECT_TRUE(absl::IsInvalidArgument(ingest_.AppendEvents(request).status()));
}

TEST_F(IngestTest, StepsBecomeTheCurveAndTheProgress) {
  EXPECT_EQ(ingest_.AppendEvents(Steps(0, 100, 1))->offset(), 100);
  EXPECT_EQ(ingest_.AppendEvents(Steps(100, 200, 2))->offset(), 200);
  EXPECT_EQ(metrics_.Count(job_).value(), 2);
  const v1::Progress progress = Job(job_).progress();
  EXPECT_EQ(progress.step(), 2);
  EXPECT_EQ(progress.loss(), 0.5);
  EXPECT_EQ(progress.eta_seconds(), 16);
}

TEST_F(IngestTest, WhatEachRankSaysOfItsOwnRowsIsKept) {
  for (const int rank : {0, 1}) {
    v1::AppendEventsRequest request = Steps(0, 10, 1);
    request.set_rank(rank);
    request.mutable_events(0)->mutable_metric()->set_rank_loss(0.25 + rank);
    request.mutable_events(0)->mutable_metric()->set_gpu_memory_bytes(100 + rank);
    ASSERT_EQ(ingest_.AppendEvents(request)->offset(), 10);
    ASSERT_EQ(ingest_.AppendEvents(request)->offset(), 10);
  }
  EXPECT_EQ(metrics_.Count(job_).value(), 1) << "the curve is rank 0's";
  const auto ranks = metrics_.ranks().Read(job_).value();
  ASSERT_EQ(ranks.size(), 2u);
  for (const int rank : {0, 1}) {
    ASSERT_EQ(ranks.at(rank).size(), 1u);
    EXPECT_EQ(ranks.at(rank)[0].loss, 0.25 + rank);
    EXPECT_EQ(ranks.at(rank)[0].memory_bytes, 100 + rank);
    EXPECT_EQ(ranks.at(rank)[0].attempt, 1);
  }
}

TEST_F(IngestTest, ARankThatTheDiskHasNoRoomForKeepsNothingElseBack) {
  // Where its file would be is a folder.
  ASSERT_TRUE(io::MakeDirs(dir_ + "/metrics/" + job_ + "/rank-0.points").ok());
  v1::AppendEventsRequest request = Steps(0, 10, 1);
  request.mutable_events(0)->mutable_metric()->set_rank_loss(0.25);
  EXPECT_EQ(ingest_.AppendEvents(request)->offset(), 10);
  EXPECT_EQ(metrics_.Count(job_).value(), 1);
}

TEST_F(IngestTest, RepeatedEventsAndGapsAreAnsweredWithTheOffsetItHas) {
  ASSERT_TRUE(ingest_.AppendEvents(Steps(0, 100, 1)).ok());
  EXPECT_EQ(ingest_.AppendEvents(Steps(0, 100, 1))->offset(), 100);
  EXPECT_EQ(ingest_.AppendEvents(Steps(300, 400, 4))->offset(), 100);
  EXPECT_EQ(metrics_.Count(job_).value(), 1);
}

TEST_F(IngestTest, NotesBecomeEventsOfTheJob) {
  v1::AppendEventsRequest request = Steps(0, 100, 1);
  request.set_rank(1);
  v1::RankEvent* note = request.add_events();
  note->set_note("replicas agree");
  note->set_type("consistency");
  ASSERT_TRUE(ingest_.AppendEvents(request).ok());
  EXPECT_EQ(metrics_.Count(job_).value(), 0) << "the curve is rank 0's";
  const auto events = jobs_->Events(job_, 0, 100).value();
  EXPECT_EQ(events.back().type(), "consistency");
  EXPECT_EQ(events.back().message(), "replicas agree");
}

// Each note is a row that stays as long as the job.
TEST_F(IngestTest, NotesThatComeTooFastAreDroppedCountedAndReportedOnce) {
  int64_t offset = 0;
  const auto say = [&](int notes) {
    v1::AppendEventsRequest request = Steps(offset, offset + notes, 1);
    request.clear_events();
    for (int i = 0; i < notes; ++i) request.add_events()->set_note("again");
    offset += notes;
    EXPECT_EQ(ingest_.AppendEvents(request)->offset(), offset);
  };
  const auto count = [&](const char* type) {
    int found = 0;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(
                          Statement get, db.Prepare("SELECT count(*) FROM events WHERE type = ?"));
                      SFT_RETURN_IF_ERROR(get.Bind(type).Step().status());
                      found = static_cast<int>(get.Int(0));
                      return absl::OkStatus();
                    })
                    .ok());
    return found;
  };
  say(NoteLimits::kAtOnce + 200);
  EXPECT_EQ(count("note"), NoteLimits::kAtOnce);
  EXPECT_EQ(count("warning"), 1);
  EXPECT_EQ(registry_->refusals().counts().at("a"), 200);
  clock_.Advance(NoteLimits::kOneIn * 3);
  say(10);
  EXPECT_EQ(count("note"), NoteLimits::kAtOnce + 3);
  EXPECT_EQ(count("warning"), 1) << "told once";
}

TEST_F(IngestTest, ARepeatWithNewEventsStoresOnlyTheNewOnes) {
  const auto note = [&](int64_t begin, int64_t end, const std::vector<std::string>& texts) {
    v1::AppendEventsRequest request = Steps(begin, end, 1);
    request.clear_events();
    for (const std::string& text : texts) request.add_events()->set_note(text);
    return ingest_.AppendEvents(request)->offset();
  };
  EXPECT_EQ(note(0, 100, {"a"}), 100);
  // The answer was lost, and the node has read on meanwhile.
  EXPECT_EQ(note(0, 150, {"a", "b"}), 100);
  EXPECT_EQ(note(100, 150, {"b"}), 150);
  const auto events = jobs_->Events(job_, 0, 100).value();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events[events.size() - 2].message(), "a");
  EXPECT_EQ(events.back().message(), "b");
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const auto& event) { return event.type() == "note"; }),
            2);
}

TEST_F(IngestTest, ALogOfARankOrAttemptThatDoesNotExistIsNotFound) {
  v1::ReadLogRequest read;
  read.set_name(job_);
  read.set_rank(2);
  EXPECT_TRUE(absl::IsNotFound(ingest_.FindLog(read).status()));
  read.set_rank(0);
  read.set_attempt(2);
  EXPECT_TRUE(absl::IsNotFound(ingest_.FindLog(read).status()));
  read.set_attempt(0);
  read.set_stream("stdin");
  EXPECT_TRUE(absl::IsInvalidArgument(ingest_.FindLog(read).status()));
  read.set_stream("prepare");
  EXPECT_TRUE(ingest_.FindLog(read).ok());
}

}  // namespace
}  // namespace sft::server
