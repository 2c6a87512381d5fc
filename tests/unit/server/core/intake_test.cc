#include <map>

#include "common/io/sha256.h"
#include "common/spec/fields.h"
#include "server/core/job_intake.h"
#include "server/core/scheduling.h"
#include "server/core/uploads.h"
#include "server/store/checkpoints.h"
#include "server/store/schedules.h"
#include "tests/unit/server/core/fleet_fixture.h"

namespace sft::server {
namespace {

constexpr char kJobFile[] = R"([job]
model = "/models/tiny"
data = "rows.jsonl"
[compute]
gpu_type = "CPU"
gpu_count = 2
nodes = 1
gpus_per_node = 2
)";

class IntakeTest : public FleetTest {
 protected:
  IntakeTest()
      : blobs_(BlobStore::Open(dir_ + "/blobs").value()),
        relay_(*registry_),
        planner_(*store_, *registry_, relay_),
        intake_(*store_, *blobs_, *jobs_, planner_) {}

  absl::Status Upload(const std::string& content) {
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(static_cast<int64_t>(content.size()));
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    message.set_display_name("rows.jsonl");
    message.set_data(content);
    UploadSession session(*blobs_, *blobs_, *store_, clock_, "local");
    SFT_RETURN_IF_ERROR(session.Take(message));
    return session.Finish().status();
  }
  v1::SubmitJobRequest Request(const std::string& text = kJobFile) {
    v1::SubmitJobRequest request;
    request.set_source_text(text);
    request.set_file_name("job.toml");
    v1::JobFile* file = request.add_files();
    file->set_key("job.data");
    file->set_sha256(io::Sha256Hex(kRows));
    return request;
  }
  // A worker that answers for "/models/..." with this config.json, and has no other file.
  std::shared_ptr<FakeWorker> JoinWithModel(const std::string& config) {
    const auto worker = Join("a", "CPU", 2);
    worker->on_fetch = [this, config](const v1::FetchFile& fetch) {
      v1::SendFileRequest chunk;
      chunk.set_request(fetch.request());
      if (fetch.path().starts_with("/models/")) {
        chunk.set_data(config);
      } else {
        chunk.set_error("cannot open " + fetch.path() + ": No such file or directory");
      }
      EXPECT_TRUE(relay_.Push(chunk).ok());
      relay_.End(fetch.request());
    };
    return worker;
  }
  // The problems' texts, each "key: message".
  std::vector<std::string> Problems(const v1::SubmitJobRequest& request) {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    std::vector<std::string> texts;
    for (const auto& problem : outcome->problems)
      texts.push_back(problem.key + ": " + problem.message);
    return texts;
  }

  template <typename Request>
  static void Set(Request& request, const std::string& key, const std::string& value) {
    v1::Override& added = *request.add_overrides();
    added.set_kind(v1::Override::SET);
    added.set_key(key);
    added.set_value(value);
    added.set_origin("--set");
  }
  static std::string ValueOf(const v1::Job& job, const std::string& key) {
    for (const v1::ResolvedValue& value : job.resolved()) {
      if (value.key() == key) return value.value();
    }
    return "none";
  }
  // The name of a job that was submitted, ran and failed with a checkpoint of step 10.
  std::string EndWithCheckpoint(const v1::SubmitJobRequest& request,
                                const std::shared_ptr<FakeWorker>& worker) {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok() && outcome->problems.empty());
    const std::string name = outcome->job.name();
    Tick();
    CheckpointRecord checkpoint;
    checkpoint.job_id = name.substr(name.rfind('/') + 1);
    checkpoint.attempt_uid = Uid(checkpoint.job_id);
    checkpoint.attempt = 1;
    checkpoint.step = 10;
    checkpoint.created_us = 1;
    const CheckpointPart part{.node = "a"};
    const absl::Status put = store_->Write([&](Database& db) {
      return store::PutCheckpointPart(db, checkpoint, part, {}, 1).status();
    });
    EXPECT_TRUE(put.ok()) << put;
    Report("a", worker, checkpoint.attempt_uid, v1::AttemptStatus::DONE, "nan_loss");
    return name;
  }

  void Limit(const ProjectLimits& limits) {
    EXPECT_TRUE(store_->Write([&](Database& db) { return store::PutLimits(db, limits); }).ok());
  }

  static constexpr char kConfig[] =
      R"({"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"num_hidden_layers":2,"vocab_size":256})";
  static constexpr char kTraining[] = "[hyperparameters]\nper_device_batch = 2\n";
  static constexpr char kRows[] = "{\"text\":\"a\"}\n";
  std::unique_ptr<BlobStore> blobs_;
  FileRelay relay_;
  Planner planner_;
  JobIntake intake_;
};

TEST_F(IntakeTest, AJobWhoseFilesAreThereIsStoredWithAllThatWasSent) {
  JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  const auto outcome = intake_.Submit(Request(), "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(outcome->problems.empty()) << outcome->problems[0].message;
  ASSERT_TRUE(outcome->missing_files.empty());
  const v1::Job job = jobs_->Get(outcome->job.name()).value();
  EXPECT_EQ(job.source_text(), kJobFile);
  EXPECT_EQ(job.state(), v1::Job::PENDING);
  EXPECT_EQ(job.owner(), "local");
  EXPECT_GT(job.resolved_size(), 10);
  EXPECT_NE(job.resolved_json().find("/models/tiny"), std::string::npos);
}

TEST_F(IntakeTest, CallsSideBySideCannotPassTheLimitOfWaitingJobsTogether) {
  Limit({.project = "default", .max_pending = 2});
  JobRecord job;
  job.project = "default";
  std::vector<JobRecord> three(3, job);
  // Each was checked before one of them was stored.
  for (int i = 0; i < 3; ++i) three[i].id = "job-" + std::to_string(i);
  EXPECT_TRUE(absl::IsResourceExhausted(jobs_->SubmitSweep(three, {}, "text").status()));
  EXPECT_TRUE(jobs_->List({})->jobs.empty()) << "a sweep is stored whole or not at all";
  EXPECT_TRUE(jobs_->Submit(three[0], {}).ok());
  EXPECT_TRUE(jobs_->Submit(three[1], {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(jobs_->Submit(three[2], {}).status()));
  EXPECT_EQ(jobs_->List({})->jobs.size(), 2u);
}

TEST_F(IntakeTest, ARepeatIsAnsweredThoughNoMoreJobsMayWait) {
  JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  Limit({.project = "default", .max_pending = 1});
  v1::SubmitJobRequest request = Request();
  request.set_request_id("once");
  const auto first = intake_.Submit(request, "local");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto again = intake_.Submit(request, "local");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->job.name(), first->job.name());
  request.set_request_id("another");
  EXPECT_TRUE(absl::IsResourceExhausted(intake_.Submit(request, "local").status()));
}

TEST_F(IntakeTest, UploadsAtOnceAndUnfinishedOnesCountInTheQuota) {
  DiskWatch disk(dir_, {}, clock_);
  IntakeLimits limits(*store_, clock_, disk);
  const auto set_quota = [&](int64_t bytes) {
    ASSERT_TRUE(
        store_->Write([&](Database& db) {
                return store::PutQuota(db, {kDefaultProject, bytes, 0});
              })
            .ok());
  };
  const auto begin = [&](const std::string& content, size_t bytes, UploadSession& session) {
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(static_cast<int64_t>(content.size()));
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    message.set_data(content.substr(0, bytes));
    return session.Take(message);
  };
  const auto session = [&] {
    return std::make_unique<UploadSession>(*blobs_, *blobs_, *store_, clock_, "local",
                                           kDefaultProject, &limits);
  };
  const std::string one = "{\"text\":\"1\"}\n", two = "{\"text\":\"2\"}\n";
  const auto size = static_cast<int64_t>(one.size());
  set_quota(2 * size - 1);
  auto first = session();
  ASSERT_TRUE(begin(one, 1, *first).ok());
  auto second = session();
  EXPECT_TRUE(absl::IsResourceExhausted(begin(two, two.size(), *second))) << "one is under way";
  // It has ended with the half of it: that half counts.
  first.reset();
  set_quota(size);
  const absl::Status refused = begin(two, two.size(), *session());
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_NE(Message(refused).find("of uploads that have not ended"), std::string_view::npos)
      << refused;
  set_quota(size + 1);
  second = session();
  ASSERT_TRUE(begin(two, two.size(), *second).ok());
  // The quota became smaller meanwhile; what was sent is kept.
  set_quota(size - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(second->Finish().status()));
  second.reset();
  EXPECT_EQ(blobs_->Find(io::Sha256Hex(two), kDefaultProject)->received, size);
  set_quota(size + 1);
  const auto again = session();
  v1::UploadBlobRequest rest;
  rest.set_sha256(io::Sha256Hex(two));
  rest.set_size(size);
  rest.set_offset(size);
  rest.set_purpose(v1::UploadBlobRequest::DATASET);
  ASSERT_TRUE(again->Take(rest).ok());
  EXPECT_TRUE(again->Finish().ok());
}

TEST_F(IntakeTest, AFileThatWasNotUploadedIsNamed) {
  JoinWithModel(kConfig);
  const auto outcome = intake_.Submit(Request(), "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->missing_files, std::vector<std::string>{"job.data"});
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
}

TEST_F(IntakeTest, ValidateOnlyChecksEverythingAndStoresNothing) {
  JoinWithModel(kConfig);
  v1::SubmitJobRequest request = Request();
  request.set_validate_only(true);
  request.clear_files();
  EXPECT_TRUE(Problems(request).empty());
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
}

TEST_F(IntakeTest, AllProblemsOfTheFileComeAtOnce) {
  JoinWithModel(kConfig);
  const auto problems = Problems(Request(std::string(kJobFile) + "nonsense = 1\nvariant = 3\n"));
  EXPECT_GE(problems.size(), 2u);
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
}

TEST_F(IntakeTest, ATypeOrSizeNobodyHasIsRefusedWithWhatThereIs) {
  Join("a", "H100", 1);
  auto problems = Problems(Request());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0], "compute.gpu_type: no node has CPU; there is up to: H100-1x");
  Join("b", "CPU", 1);
  problems = Problems(Request());
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0], "compute.gpus_per_node: no node has CPU-2x; the largest is CPU-1x");
}

TEST_F(IntakeTest, AModelIdNobodySeesIsRefusedWithWhatIsSeen) {
  v1::Register node = RegisterOf("a", "CPU", 2);
  node.add_models()->set_id("org/good");
  v1::Model* broken = node.add_models();
  broken->set_id("org/broken");
  broken->set_problem("tokenizer.json is missing");
  ASSERT_TRUE(registry_->Connect(node, std::make_shared<FakeWorker>()).ok());
  const auto with_model = [&](const std::string& model) {
    std::string text = kJobFile;
    return Problems(Request(text.replace(text.find("/models/tiny"), 12, model)));
  };
  ASSERT_EQ(with_model("org/none").size(), 1u);
  EXPECT_EQ(with_model("org/none")[0].find(
                "job.model: no node sees model \"org/none\" (seen: org/broken, org/good)"),
            0u);
  ASSERT_EQ(with_model("org/broken").size(), 1u);
  EXPECT_NE(with_model("org/broken")[0].find("tokenizer.json is missing"), std::string::npos);
  EXPECT_EQ(intake_.Submit(Request(), "local")->missing_files.size(), 1u);
}

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

TEST_F(IntakeTest, WhatNoCheckpointFitsIsRefusedAtOnceWithAllElseThatIsWrong) {
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
  EXPECT_EQ(problems("job.data", "more.jsonl").find("job.data: is \"more.jsonl\", but a resume"),
            0u);
  EXPECT_EQ(problems("compute.gpu_count", "4").find("compute.gpu_count: no node has CPU-4x"), 0u);
  EXPECT_NE(problems("compute.gpus", "4").find("unknown key"), std::string::npos);
  EXPECT_EQ(jobs_->List({})->jobs.size(), 1u);
}

TEST_F(IntakeTest, BeforeTheFirstWorkerAJobIsTakenAndWaits) {
  ASSERT_TRUE(Upload(kRows).ok());
  const auto outcome = intake_.Submit(Request(), "local");
  ASSERT_TRUE(outcome.ok() && outcome->problems.empty());
  Tick();
  EXPECT_EQ(jobs_->Get(outcome->job.name())->reason(),
            "no worker has registered yet: start sft-worker on a node");
}

TEST_F(IntakeTest, TheAnswerToResolveNamesTheFilesAndThePlacement) {
  JoinWithModel(kConfig);
  v1::ResolveJobRequest request;
  request.set_source_text(kJobFile);
  request.set_file_name("job.toml");
  const auto response = intake_.Resolve(request);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->needed_files_size(), 1);
  EXPECT_EQ(response->needed_files(0).key(), "job.data");
  EXPECT_EQ(response->needed_files(0).path(), "rows.jsonl");
  EXPECT_FALSE(response->needed_files(0).from_override());
  EXPECT_EQ(response->plan().placement(), "could start now on a");
  EXPECT_EQ(response->plan().ranks(), 2);
}

TEST_F(IntakeTest, ABadDataSetIsRefusedAtTheEndOfItsUpload) {
  const absl::Status status = Upload("[1]\n");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(Message(status),
            "line 1: a JSON array, not an object; a data set is JSON Lines, one object a line")
      << "the sender names the file";
  EXPECT_FALSE(blobs_->Find(io::Sha256Hex("[1]\n"))->complete);
}

TEST_F(IntakeTest, RowsOfNoKnownFormAreRefusedOrLeftOutAsTheJobSays) {
  JoinWithModel(kConfig);
  const std::string rows = "{\"text\":\"a\"}\n{\"foo\":1}\n";
  ASSERT_TRUE(Upload(rows).ok());
  const auto problems = [&](const std::string& more, const std::string& content) {
    v1::SubmitJobRequest request = Request(std::string(kJobFile) + more);
    request.mutable_files(0)->set_sha256(io::Sha256Hex(content));
    request.mutable_files(0)->set_client_path("my/rows.jsonl");
    v1::SubmitJobRequest dry = request;
    dry.set_validate_only(true);
    const auto found = Problems(request);
    EXPECT_EQ(Problems(dry), found) << "a dry run says the same";
    return found;
  };
  ASSERT_EQ(problems("", rows).size(), 1u);
  EXPECT_EQ(problems("", rows)[0].find("job.data: my/rows.jsonl: line 2: none of the row forms"),
            0u)
      << problems("", rows)[0];
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
  EXPECT_TRUE(problems("[data]\nmax_examples = 1\n", rows).empty())
      << "it is not among those taken";
  EXPECT_TRUE(problems("[data]\non_bad_rows = \"skip\"\n", rows).empty());
  ASSERT_TRUE(Upload("{}\n").ok());
  ASSERT_EQ(problems("[data]\non_bad_rows = \"skip\"\n", "{}\n").size(), 1u);
  EXPECT_NE(problems("[data]\non_bad_rows = \"skip\"\n", "{}\n")[0].find("none of its 1 rows"),
            std::string::npos);
}

TEST_F(IntakeTest, ADeadlineThatHasPassedIsAWarning) {
  JoinWithModel(kConfig);
  const auto warnings = [&](const std::string& deadline) {
    v1::ResolveJobRequest request;
    request.set_source_text(std::string(kJobFile) + "[scheduling]\ndeadline = \"" + deadline +
                            "\"\n");
    request.set_file_name("job.toml");
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->problems_size(), 0);
    return response->warnings();
  };
  EXPECT_EQ(warnings("2199-01-01T00:00:00Z").size(), 0);
  const auto late = warnings("1970-01-01T00:00:01Z");
  ASSERT_EQ(late.size(), 1);
  EXPECT_EQ(late[0].line(), 10);
  EXPECT_EQ(late[0].message(), "1970-01-01T00:00:01Z has passed: the job can only be late");
}

TEST_F(IntakeTest, ASweepThatWouldMakeTheSameJobTwiceIsRefused) {
  JoinWithModel(kConfig);
  Scheduling scheduling(*store_, clock_, intake_, *jobs_);
  const auto refusal = [&](const std::vector<std::pair<std::string, std::string>>& axes) {
    v1::SubmitSweepRequest request;
    *request.mutable_job() = Request();
    request.mutable_job()->set_request_id("sweep");
    request.mutable_job()->set_validate_only(true);
    for (const auto& [key, values] : axes) {
      v1::SweepAxis* axis = request.add_axes();
      axis->set_key(key);
      for (std::string_view value : spec::SplitWords(values, ','))
        axis->add_values(std::string(value));
    }
    return std::string(Message(scheduling.Submit(request, "local").status()));
  };
  EXPECT_EQ(refusal({{"lora.r", "8,16,8"}}),
            "lora.r has the value 8 twice: two jobs would be the same");
  EXPECT_EQ(refusal({{"learning_rate", "1e-4,0.0001"}}),
            "learning_rate has the value 0.0001 twice: two jobs would be the same");
  EXPECT_EQ(refusal({{"lora.r", "8"}, {"lora_r", "16"}}),
            "lora_r is given twice: name all its values at once");
  EXPECT_EQ(refusal({{"lora.r", "8,16"}, {"hyperparameters.seed", "1,2"}}), "");
}

TEST_F(IntakeTest, ProblemsOfTheFileOfTheFleetAndOfTheFilesComeAtOnce) {
  Join("a", "H100", 4);
  v1::ResolveJobRequest request;
  request.set_source_text(
      "[job]\nmodel = \"org/none\"\ndata = \"rows.jsonl\"\n[compute]\nvariant = \"B200-4x\"\n"
      "[hyperparameters]\nglobal_batch = 2\nlearnig_rate = 1\n");
  request.set_file_name("job.toml");
  const auto response = intake_.Resolve(request);
  ASSERT_TRUE(response.ok()) << response.status();
  std::map<std::string, int> lines;
  for (const v1::Problem& problem : response->problems()) lines[problem.key()] = problem.line();
  EXPECT_EQ(lines["job.model"], 2);
  EXPECT_EQ(lines["compute.variant"], 5) << "under the key that the file has";
  EXPECT_EQ(lines["hyperparameters.global_batch"], 7);
  EXPECT_EQ(lines["hyperparameters.learnig_rate"], 8);
  EXPECT_EQ(lines.size(), 4u);
  ASSERT_EQ(response->needed_files_size(), 1);
  EXPECT_EQ(response->needed_files(0).line(), 3);
}

TEST_F(IntakeTest, AModelThatCannotBeTrainedIsAProblemNotANote) {
  const auto with = [&](const std::string& config, const std::string& more = "",
                        const std::string& model = "/models/tiny") {
    const auto worker = JoinWithModel(config);
    std::string text = kJobFile;
    return Problems(Request(text.replace(text.find("/models/tiny"), 12, model) + more));
  };
  EXPECT_TRUE(with(kConfig).empty());
  const auto family = with(R"({"model_type":"gpt2"})");
  ASSERT_EQ(family.size(), 1u);
  EXPECT_EQ(family[0].find("job.model: /models/tiny: config.json: \"model_type\" \"gpt2\""), 0u);
  const auto targets = with(kConfig, "[lora]\ntarget_modules = [\"none_proj\"]\n");
  ASSERT_EQ(targets.size(), 1u);
  EXPECT_EQ(targets[0].find("lora.target_modules: \"none_proj\" matches no linear"), 0u);
  const auto missing = with(kConfig, "", "/etc");
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].find("job.model: a: cannot open /etc/config.json"), 0u);
}

TEST_F(IntakeTest, AModelThatNoNodeCanBeAskedForIsANote) {
  v1::ResolveJobRequest request;
  request.set_source_text(kJobFile);
  request.set_file_name("job.toml");
  const auto response = intake_.Resolve(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->problems_size(), 0);
  EXPECT_NE(response->plan().note().find("not seen on any connected node"), std::string::npos);
}

TEST_F(IntakeTest, TheTypeInWhichRanksComputeIsShown) {
  const auto shown = [&](const std::string& text) {
    v1::ResolveJobRequest request;
    request.set_source_text(text);
    request.set_file_name("job.toml");
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    for (const v1::ResolvedValue& value : response->resolved()) {
      if (value.key() != "hyperparameters.parallelism.bf16") continue;
      const bool bf16 =
          response->resolved_json().find("\"compute_type\":\"bf16\"") != std::string::npos;
      return value.value() + " " + value.origin() + (bf16 ? " bf16" : "");
    }
    return std::string("absent");
  };
  JoinWithModel(kConfig);
  EXPECT_EQ(shown(kJobFile), "false derived: CPU computes on the CPU");
  std::string gpu = kJobFile;
  gpu.replace(gpu.find("\"CPU\""), 5, "\"H100\"");
  gpu.replace(gpu.find("/models/tiny"), 12, "org/tiny");
  v1::Register seen = RegisterOf("b", "H100", 2);
  v1::Model* model = seen.add_models();
  model->set_id("org/tiny");
  model->set_path("/models/tiny");
  model->set_config_json(kConfig);
  ASSERT_TRUE(registry_->Connect(seen, std::make_shared<FakeWorker>()).ok());
  EXPECT_EQ(shown(gpu), "true derived: H100 computes on GPUs bf16");
  seen.set_simulated(true);
  ASSERT_TRUE(registry_->Connect(seen, std::make_shared<FakeWorker>()).ok());
  EXPECT_EQ(shown(gpu), "false derived: H100 computes on the CPU");
}

TEST_F(IntakeTest, AutoTypesOfWeightsAndStatesAreChosenAtSubmitAndShown) {
  // 8 billion parameters.
  constexpr char kLarge[] =
      R"({"model_type":"llama","hidden_size":4096,"intermediate_size":14336,)"
      R"("num_attention_heads":32,"num_key_value_heads":8,"num_hidden_layers":32,)"
      R"("vocab_size":128256})";
  v1::Register seen = RegisterOf("b", "H200", 1);
  seen.mutable_slots(0)->set_memory_bytes(int64_t{120} << 30);
  v1::Model* model = seen.add_models();
  model->set_id("org/large");
  model->set_path("/models/large");
  model->set_config_json(kLarge);
  ASSERT_TRUE(registry_->Connect(seen, std::make_shared<FakeWorker>()).ok());
  const auto resolve = [&](const std::string& keys) {
    v1::ResolveJobRequest request;
    request.set_source_text(R"([job]
model = "org/large"
data = "rows.jsonl"
[compute]
gpu_type = "H200"
gpu_count = 1
[training]
mode = "full_finetune"
[hyperparameters]
global_batch = 4
)" + keys);
    request.set_file_name("job.toml");
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return *response;
  };
  const auto shown = [](const v1::ResolveJobResponse& response, const std::string& key) {
    for (const v1::ResolvedValue& value : response.resolved()) {
      if (value.key() == "hyperparameters." + key) return value.value() + " " + value.origin();
    }
    return std::string("absent");
  };
  const auto neither = resolve("optimizer = \"auto\"\n");
  EXPECT_EQ(neither.problems_size(), 0);
  EXPECT_EQ(shown(neither, "optimizer"),
            "adamw_bf16 derived: the most precise with which the job fits");
  EXPECT_EQ(shown(neither, "master_weights"), "auto default");
  ASSERT_EQ(neither.warnings_size(), 1);
  EXPECT_EQ(neither.warnings(0).line(), 11);
  EXPECT_NE(neither.resolved_json().find(R"("optimizer":"adamw_bf16")"), std::string::npos);
  const auto weights = resolve("optimizer = \"adamw\"\n");
  EXPECT_EQ(weights.problems_size(), 0);
  EXPECT_EQ(shown(weights, "master_weights"),
            "bf16 derived: the most precise with which the job fits");
  const auto pinned = resolve("optimizer = \"adamw\"\nmaster_weights = \"fp32\"\n");
  EXPECT_EQ(pinned.problems_size(), 1);
}

TEST_F(IntakeTest, AnUploadOfACompleteBlobIsFine) {
  ASSERT_TRUE(Upload(kRows).ok());
  EXPECT_TRUE(Upload(kRows).ok());
}

}  // namespace
}  // namespace sft::server
