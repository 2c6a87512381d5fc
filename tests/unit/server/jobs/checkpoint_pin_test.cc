#include "server/jobs/checkpoint_pin.h"

#include <gmock/gmock.h>

#include "server/resume/resume.h"
#include "server/store/jobs.h"
#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kAnswers[] = R"([job]
kind = "serve"
model = "/models/tiny"
[compute]
gpu_type = "CPU"
gpu_count = 1
[scheduling]
time_limit = "1h"
)";

class CheckpointPinTest : public IntakeTest {
 protected:
  void SetUp() override {
    worker_ = JoinWithModel(kConfig);
    ASSERT_TRUE(Upload(kRows).ok());
    v1::SubmitJobRequest request = Request(std::string(kJobFile) + kTraining);
    Set(request, "data.chat_template", "{{ messages }}");
    Set(request, "checkpoint.save_total_limit", "1");
    job_ = EndWithCheckpoint(request, worker_);
    id_ = job_.substr(job_.rfind('/') + 1);
  }
  // Besides that of step 10.
  void Put(int64_t step, bool best = false, const std::string& problem = "") {
    CheckpointRecord checkpoint;
    checkpoint.job_id = id_;
    checkpoint.attempt_uid = Uid(id_);
    checkpoint.attempt = 1;
    checkpoint.step = step;
    checkpoint.best = best;
    checkpoint.created_us = step;
    const CheckpointPart part{.node = "a"};
    EXPECT_TRUE(store_
                    ->Write([&](Database& db) -> absl::Status {
                      SFT_RETURN_IF_ERROR(
                          store::PutCheckpointPart(db, checkpoint, part, {}, 1).status());
                      if (problem.empty()) return absl::OkStatus();
                      return store::SetCheckpointProblem(db, checkpoint.attempt_uid, step, problem);
                    })
                    .ok());
  }
  v1::SubmitJobRequest Asking(const std::string& which) {
    v1::SubmitJobRequest request;
    request.set_source_text(kAnswers);
    request.set_file_name("serve.toml");
    Set(request, "job.adapter", id_ + "@" + which);
    return request;
  }

  std::shared_ptr<FakeWorker> worker_;
  std::string job_, id_;
};

TEST_F(CheckpointPinTest, WordsMeanAStepFromTheSubmitOn) {
  Put(20, /*best=*/true);
  Put(30);
  Put(40, /*best=*/false, "rank-0 is cut short");
  for (const auto& [which, step] : {std::pair("latest", 30), {"best", 20}, {"10", 10}}) {
    const auto outcome = intake_.Submit(Asking(which), "local");
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_TRUE(outcome->problems.empty()) << outcome->problems[0].message;
    const v1::Job job = jobs_->Get(outcome->job.name()).value();
    EXPECT_EQ(ValueOf(job, "job.adapter"), id_ + "@" + std::to_string(step));
    EXPECT_EQ(ValueOf(job, "data.chat_template"), "{{ messages }}");
    EXPECT_EQ(job.resumed_from(), job_);
    EXPECT_EQ(job.resumed_step(), step);
  }
}

TEST_F(CheckpointPinTest, TheNodeGetsTheCheckpointAndItsOwnCountBeginsAtZero) {
  const auto outcome = intake_.Submit(Asking("latest"), "local");
  ASSERT_TRUE(outcome.ok() && outcome->problems.empty());
  Tick();
  const v1::Job job = jobs_->Get(outcome->job.name()).value();
  ASSERT_EQ(job.attempts_size(), 1) << job.reason();
  EXPECT_EQ(job.attempts(0).first_step(), 0);
  const std::string id = job.name().substr(job.name().rfind('/') + 1);
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(const JobRecord record, store::GetJob(db, id));
                    SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, id, 1));
                    v1::Dispatch dispatch;
                    SFT_RETURN_IF_ERROR(FillResume(db, record, *attempt, "a", dispatch));
                    EXPECT_EQ(dispatch.resume().step(), 10);
                    return absl::OkStatus();
                  })
                  .ok());
}

TEST_F(CheckpointPinTest, WhatAnswersIsKeptAndNothingElse) {
  const auto outcome = intake_.Submit(Asking("10"), "local");
  ASSERT_TRUE(outcome.ok() && outcome->problems.empty());
  Put(20);
  Put(30);
  std::vector<int64_t> left;
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) -> absl::Status {
                    SFT_RETURN_IF_ERROR(TrimCheckpoints(db, id_, 1).status());
                    SFT_ASSIGN_OR_RETURN(const auto kept, store::CheckpointsOfJob(db, id_));
                    for (const CheckpointRecord& each : kept) left.push_back(each.step);
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_THAT(left, ElementsAre(30, 10));
}

TEST_F(CheckpointPinTest, WhatIsNotThereIsNamedWithWhatThereIs) {
  Put(20);
  const auto problem = [&](const v1::SubmitJobRequest& request) {
    const std::vector<std::string> problems = Problems(request);
    return problems.empty() ? "" : problems[0];
  };
  EXPECT_THAT(problem(Asking("7")), HasSubstr("no checkpoint of step 7; there is: 20, 10"));
  EXPECT_THAT(problem(Asking("best")), HasSubstr("is the best of a validation; there is: 20, 10"));
  EXPECT_THAT(problem(Asking("newest")), HasSubstr("write JOB@STEP, JOB@best or JOB@latest"));
  EXPECT_THAT(problem(Asking("-1")), HasSubstr("write JOB@STEP, JOB@best or JOB@latest"));
  v1::SubmitJobRequest nobody = Asking("best");
  nobody.clear_overrides();
  Set(nobody, "job.adapter", "job-nobody@best");
  EXPECT_THAT(problem(nobody), HasSubstr("job-nobody"));
  v1::SubmitJobRequest trains = Request();
  Set(trains, "job.adapter", id_ + "@10");
  EXPECT_THAT(problem(trains), HasSubstr("sftctl resume JOB --from STEP"));
  v1::SubmitJobRequest other = Asking("10");
  other.set_project("others");
  EXPECT_THAT(problem(other), HasSubstr("no job"));
}

TEST_F(CheckpointPinTest, AJobThatAnswersWithACheckpointIsNotResumed) {
  const auto outcome = intake_.Submit(Asking("10"), "local");
  ASSERT_TRUE(outcome.ok() && outcome->problems.empty());
  ASSERT_TRUE(jobs_->Cancel(outcome->job.name(), "", false).ok());
  v1::ResumeJobRequest resume;
  resume.set_name(outcome->job.name());
  EXPECT_THAT(std::string(intake_.Resume(resume, "ann").status().message()),
              HasSubstr("submit it again"));
}

}  // namespace
}  // namespace sft::server
