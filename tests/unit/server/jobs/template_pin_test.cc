#include "server/jobs/template_pin.h"

#include <gmock/gmock.h>

#include "server/store/jobs.h"
#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

using ::testing::HasSubstr;

constexpr char kDay[] = "data.template_date", kArguments[] = "data.template_arguments";

class TemplatePinTest : public IntakeTest {
 protected:
  void SetUp() override {
    worker_ = JoinWithModel(kConfig);
    ASSERT_TRUE(Upload(kRows).ok());
  }
  std::string Train(const std::vector<std::pair<std::string, std::string>>& values = {}) {
    v1::SubmitJobRequest request = Request(std::string(kJobFile) + kTraining);
    for (const auto& [key, value] : values) Set(request, key, value);
    return EndWithCheckpoint(request, worker_);
  }
  v1::Job Submit(const v1::SubmitJobRequest& request) {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    for (const auto& problem : outcome->problems) ADD_FAILURE() << problem.key << problem.message;
    return jobs_->Get(outcome->job.name()).value();
  }
  v1::Job Resume(const std::string& name) {
    v1::ResumeJobRequest resume;
    resume.set_name(name);
    Set(resume, "checkpoint.save_minutes", "5");
    const auto outcome = intake_.Resume(resume, "ann");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    for (const auto& problem : outcome->problems) ADD_FAILURE() << problem.key << problem.message;
    return jobs_->Get(outcome->job.name()).value();
  }
  static v1::SubmitJobRequest Asking(const std::string& adapter) {
    v1::SubmitJobRequest request;
    request.set_source_text(
        "[job]\nkind = \"serve\"\nmodel = \"/models/tiny\"\n[compute]\ngpu_type = \"CPU\"\n"
        "gpu_count = 1\n[scheduling]\ntime_limit = \"1h\"\n");
    request.set_file_name("serve.toml");
    Set(request, "job.adapter", adapter);
    return request;
  }

  std::shared_ptr<FakeWorker> worker_;
};

TEST_F(TemplatePinTest, AJobKeepsTheDayOfItsSubmission) {
  const v1::Job job = Submit(Request(std::string(kJobFile) + kTraining));
  EXPECT_EQ(ValueOf(job, kDay), FormatUtc(clock_.Wall()).substr(0, 10));
}

TEST_F(TemplatePinTest, AResumeOnAnotherDayHasTheDayOfTheJobThatItGoesOnWith) {
  const std::string name = Train();
  const std::string day = ValueOf(jobs_->Get(name).value(), kDay);
  clock_.JumpWall(std::chrono::days(3));
  EXPECT_EQ(ValueOf(Resume(name), kDay), day);
}

TEST_F(TemplatePinTest, AJobOfAnEarlierVersionKeepsWhatThatVersionHad) {
  const std::string name = Train();
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) {
                    return db.Execute(
                        "UPDATE job_texts SET resolved_values = replace(resolved_values, "
                        "'data.template_date', 'data.not_yet_there')");
                  })
                  .ok());
  EXPECT_EQ(ValueOf(Resume(name), kDay), "none");
}

TEST_F(TemplatePinTest, WhoAnswersGivesTheTemplateWhatTheTrainingGave) {
  const std::string name = Train({{kArguments, "reasoning_effort=high,n=2"}});
  const std::string id = name.substr(name.rfind('/') + 1);
  v1::SubmitJobRequest asking = Asking(id + "@10");
  EXPECT_EQ(ValueOf(Submit(asking), kArguments), "reasoning_effort=high,n=2");
  EXPECT_EQ(ValueOf(Submit(asking), kDay), "none") << "that of each question";
  v1::SubmitJobRequest other = Asking(id + "@10");
  Set(other, kArguments, "reasoning_effort=low");
  EXPECT_EQ(ValueOf(Submit(other), kArguments), "reasoning_effort=low");
}

TEST_F(TemplatePinTest, ADayThatSomebodyGaveIsLostOnNoOlderWorker) {
  v1::SubmitJobRequest request = Request(std::string(kJobFile) + kTraining);
  const auto protocol = [&](const v1::SubmitJobRequest& asked) {
    const std::string name = Submit(asked).name();
    JobRecord record;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(record,
                                           store::GetJob(db, name.substr(name.rfind('/') + 1)));
                      return absl::OkStatus();
                    })
                    .ok());
    return std::pair(record.protocol, record.newer_keys);
  };
  EXPECT_EQ(protocol(request).first, 1);
  Set(request, kDay, "2026-11-26");
  EXPECT_EQ(protocol(request).first, 2);
  EXPECT_THAT(protocol(request).second, HasSubstr(kDay));
}

}  // namespace
}  // namespace sft::server
