#include "server/store/jobs.h"
#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

TEST_F(IntakeTest, AResumeWithOtherValuesIsResolvedAsASubmit) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  v1::SubmitJobRequest request = Request(std::string(kJobFile) + kTraining);
  Set(request, "hyperparameters.gradient_accumulation_steps", "2");
  Set(request, "lora.r", "4");
  const std::string job = EndWithCheckpoint(request, worker);
  v1::ResumeJobRequest resume;
  resume.set_name(job);
  resume.set_request_id("on one");
  Set(resume, "compute.gpu_count", "1");
  Set(resume, "scheduling.time_limit", "2h");
  const auto outcome = intake_.Resume(resume, "ann");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(outcome->problems.empty()) << outcome->problems[0].message;
  const v1::Job next = jobs_->Get(outcome->job.name()).value();
  EXPECT_EQ(next.resumed_from(), job);
  EXPECT_EQ(ValueOf(next, "compute.gpu_count"), "1");
  EXPECT_EQ(ValueOf(next, "compute.variant"), "CPU-1x");
  EXPECT_EQ(ValueOf(next, "lora.r"), "4") << "as the ended job was submitted";
  EXPECT_EQ(ValueOf(next, "scheduling.time_limit"), "2h");
  EXPECT_EQ(ValueOf(next, "hyperparameters.global_batch"), "8") << "as in the checkpoint";
  EXPECT_EQ(ValueOf(next, "hyperparameters.per_device_batch"), "2");
  EXPECT_EQ(ValueOf(next, "hyperparameters.gradient_accumulation_steps"), "4");
  const absl::StatusOr<std::vector<v1::JobEvent>> events = jobs_->Events(next.name(), 0, 10);
  EXPECT_NE(events->front().message().find("with other compute.gpu_count, scheduling.time_limit"),
            std::string::npos)
      << events->front().message();
  EXPECT_EQ(intake_.Resume(resume, "ann")->job.name(), next.name()) << "a repeat";
  Set(resume, "checkpoint.save_minutes", "5");
  EXPECT_TRUE(absl::IsAlreadyExists(intake_.Resume(resume, "ann").status())) << "another request";
}

// A job of an earlier version that accepted values refused now: in the file, and in an override.
TEST_F(IntakeTest, AnOldJobWhoseValuesAreRefusedNowIsResumed) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  const std::string training = "[hyperparameters]\nper_device_batch = 2\n";
  v1::SubmitJobRequest request =
      Request(std::string(kJobFile) + training + "[scheduling]\ntime_limit = \"8h\"\n");
  Set(request, "scheduling.warn_before", "60s");
  Set(request, "compute.network_interface", "eth0");
  Set(request, "job.name", "name");
  const std::string job = EndWithCheckpoint(request, worker);
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) {
                    return db.Execute(
                        "UPDATE job_texts SET "
                        "source_text = replace(source_text, '\"8h\"', '28800'), "
                        "resolved_values = replace(replace(replace(replace(resolved_values, "
                        "'\"8h\"', '\"28800\"'), '\"60s\"', '\"60\"'), '\"eth0\"', '\"a b\"'), "
                        "'\"name\"', '\"n' || char(8238) || 'ame\"')");
                  })
                  .ok());
  v1::SubmitJobRequest now = request;
  now.set_source_text(std::string(kJobFile) + training + "[scheduling]\ntime_limit = 28800\n");
  EXPECT_EQ(Problems(now).size(), 1u) << "who submits it now says which unit";
  v1::ResumeJobRequest resume;
  resume.set_name(job);
  Set(resume, "checkpoint.save_total_limit", "7");
  const auto outcome = intake_.Resume(resume, "ann");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  for (const auto& problem : outcome->problems) ADD_FAILURE() << problem.key << problem.message;
  const v1::Job next = jobs_->Get(outcome->job.name()).value();
  EXPECT_EQ(ValueOf(next, "scheduling.time_limit"), "28800s");
  EXPECT_EQ(ValueOf(next, "scheduling.warn_before"), "60s");
  EXPECT_EQ(ValueOf(next, "compute.network_interface"), "a b");
  EXPECT_EQ(ValueOf(next, "job.name"), "n_ame");
  EXPECT_EQ(ValueOf(next, "checkpoint.save_total_limit"), "7");
  // Values that the resume itself changes are checked by today's rules.
  ASSERT_TRUE(jobs_->Cancel(next.name(), "", false).ok());
  for (const auto& [key, value] : {std::pair("scheduling.time_limit", "9"),
                                   {"compute.network_interface", "c d"},
                                   {"job.name", "a\u202eb"}}) {
    v1::ResumeJobRequest again;
    again.set_name(next.name());
    Set(again, key, value);
    const auto refused = intake_.Resume(again, "ann");
    ASSERT_TRUE(refused.ok()) << refused.status();
    ASSERT_EQ(refused->problems.size(), 1u) << key;
    EXPECT_EQ(refused->problems[0].key, key);
  }
}

TEST_F(IntakeTest, AResumeOfAResumeKeepsWhatTheFirstHasChanged) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  v1::SubmitJobRequest request = Request();
  Set(request, "compute.gpu_count", "1");
  const std::string job = EndWithCheckpoint(request, worker);
  v1::ResumeJobRequest resume;
  resume.set_name(job);
  Set(resume, "compute.variant", "CPU-2x");
  Set(resume, "checkpoint.save_total_limit", "7");
  const auto first = intake_.Resume(resume, "ann");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(first->problems.empty()) << first->problems[0].message;
  EXPECT_EQ(ValueOf(jobs_->Get(first->job.name()).value(), "compute.gpu_count"), "2");
  ASSERT_TRUE(jobs_->Cancel(first->job.name(), "", false).ok());
  v1::ResumeJobRequest again;
  again.set_name(first->job.name());
  Set(again, "compute.gpu_count", "1");
  const auto second = intake_.Resume(again, "ann");
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE(second->problems.empty()) << second->problems[0].message;
  const v1::Job next = jobs_->Get(second->job.name()).value();
  EXPECT_EQ(ValueOf(next, "compute.gpu_count"), "1");
  EXPECT_EQ(ValueOf(next, "checkpoint.save_total_limit"), "7");
}

// Packing follows from the name of the file; a checkpoint is of packed rows.
TEST_F(IntakeTest, RawDocumentsStayPackedWhenTheirTrainingGoesOn) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  std::string text = kJobFile;
  text.replace(text.find("rows.jsonl"), 10, "book.txt");
  const std::string job = EndWithCheckpoint(Request(text), worker);
  EXPECT_EQ(ValueOf(jobs_->Get(job).value(), "data.packing"), "true");
  v1::ResumeJobRequest resume;
  resume.set_name(job);
  const auto outcome = intake_.Resume(resume, "ann");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(outcome->problems.empty()) << outcome->problems[0].message;
  EXPECT_EQ(ValueOf(jobs_->Get(outcome->job.name()).value(), "data.packing"), "true");
}

TEST_F(IntakeTest, ChangesThatNoCheckpointFitsAreRefusedWithAllOtherProblems) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  const std::string job = EndWithCheckpoint(Request(), worker);
  const auto problems = [&](const std::string& key, const std::string& value) {
    v1::ResumeJobRequest resume;
    resume.set_name(job);
    Set(resume, key, value);
    const auto outcome = intake_.Resume(resume, "ann");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    std::string text;
    for (const auto& each : outcome->problems) text += each.key + ": " + each.message + "\n";
    return text;
  };
  EXPECT_EQ(problems("lora.r", "8").find("lora.r: is 8, but the checkpoints of job-"), 0u);
  EXPECT_EQ(problems("job.model", "/models/other").find("job.model: is /models/other, but"), 0u);
  EXPECT_EQ(problems("job.adapter", "/models/a").find("job.adapter: is /models/a, but the"), 0u);
  EXPECT_EQ(problems("job.data", "more.jsonl").find("job.data: is \"more.jsonl\", but a resume"),
            0u);
  EXPECT_EQ(problems("compute.gpu_count", "4").find("compute.gpu_count: no node has CPU-4x"), 0u);
  EXPECT_NE(problems("compute.gpus", "4").find("unknown key"), std::string::npos);
  EXPECT_EQ(jobs_->List({})->jobs.size(), 1u);
}

TEST_F(IntakeTest, ATrainingGoesOnWithoutTheAdapterThatItStartedFrom) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  const std::string job = EndWithCheckpoint(Request(), worker);
  const std::string id = job.substr(job.rfind('/') + 1);
  // The artifact was removed: no blob of it is known.
  ASSERT_TRUE(
      store_
          ->Write([&](Database& db) {
            return db.Execute(
                "INSERT INTO job_files (job_id, key, sha256, size, client_path, node_path) "
                "SELECT id, 'job.adapter/adapter_config.json', 'beef', 6, '', '' FROM jobs");
          })
          .ok());
  const auto keys_of = [&](const std::string& of) {
    std::string keys;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const auto files, store::FilesOfJob(db, of));
                      for (const JobFileRecord& file : files) keys += file.key + " ";
                      return absl::OkStatus();
                    })
                    .ok());
    return keys;
  };
  ASSERT_EQ(keys_of(id), "job.adapter/adapter_config.json job.data ");
  v1::ResumeJobRequest resume;
  resume.set_name(job);
  const auto next = intake_.Resume(resume, "ann");
  ASSERT_TRUE(next.ok()) << next.status();
  const std::string name = next->job.name();
  EXPECT_EQ(keys_of(name.substr(name.rfind('/') + 1)), "job.data ");
}

}  // namespace
}  // namespace sft::server
