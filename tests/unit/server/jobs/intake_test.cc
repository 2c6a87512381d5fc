#include <gmock/gmock.h>

#include <functional>
#include <map>

#include "common/spec/fields.h"
#include "server/store/access.h"
#include "server/store/files.h"
#include "server/store/jobs.h"
#include "server/store/storage.h"
#include "tests/unit/server/jobs/intake_fixture.h"

namespace sft::server {
namespace {

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

// Who follows a job looks at it each time that it changes, and its texts are most of it.
TEST_F(IntakeTest, WhoHasSeenAJobIsGivenItsTextsWithoutReadingThem) {
  JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  const auto outcome = intake_.Submit(Request(), "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const std::string name = outcome->job.name();
  std::optional<JobManager::Texts> texts;
  const v1::Job first = jobs_->Get(name, &texts).value();
  ASSERT_GT(first.resolved_size(), 10);
  EXPECT_EQ(jobs_->Get(name, &texts)->SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(jobs_->Get(name)->SerializeAsString(), first.SerializeAsString());
  EXPECT_EQ(jobs_->StateOf(name).value(), JobState::kPending);
  const absl::Status changed = store_->Write([](Database& db) -> absl::Status {
    SFT_RETURN_IF_ERROR(
        db.Execute("UPDATE job_texts SET source_text = 'x', resolved_values = 'x'"));
    return db.Execute("UPDATE jobs SET reason = 'another'");
  });
  ASSERT_TRUE(changed.ok()) << changed;
  v1::Job expected = first;
  expected.set_reason("another");
  EXPECT_EQ(jobs_->Get(name, &texts)->SerializeAsString(), expected.SerializeAsString());
  EXPECT_TRUE(jobs_->Get(name)->resolved().empty()) << "whoever reads them now finds none";
  EXPECT_TRUE(absl::IsNotFound(jobs_->Get("job-none", &texts).status()));
  EXPECT_TRUE(absl::IsNotFound(jobs_->StateOf("job-none").status()));
}

TEST_F(IntakeTest, KtosPairsAreTwoSamplesEachInTheExpectedSteps) {
  JoinWithModel(kConfig);
  std::string rows;
  for (int i = 0; i < 12; ++i)
    rows += R"({"prompt":"a","chosen":"b","rejected":"c"})"
            "\n";
  for (int i = 0; i < 8; ++i)
    rows += R"({"prompt":"a","completion":"b","label":true})"
            "\n";
  ASSERT_TRUE(Upload(rows).ok());
  v1::SubmitJobRequest request = Request(
      std::string(kJobFile) +
      "[training]\nloss = \"kto\"\n[hyperparameters]\nglobal_batch = 4\nper_device_batch = 2\n"
      "n_epochs = 1\n");
  request.mutable_files(0)->set_sha256(io::Sha256Hex(rows));
  const auto steps = [&]() -> int64_t {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok() && outcome->problems.empty());
    const std::string name = outcome->job.name();
    ScheduleRecord schedule;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(
                          schedule, store::GetSchedule(db, name.substr(name.rfind('/') + 1)));
                      return absl::OkStatus();
                    })
                    .ok());
    return schedule.planned_steps;
  };
  EXPECT_EQ(steps(), 8) << "2 * 12 + 8 samples";
  Set(request, "data.max_examples", "10");
  EXPECT_EQ(steps(), 4) << "16 samples of the first 10 rows, by their share";
}

TEST_F(IntakeTest, AnExportAndAnEvaluationReadPairs) {
  JoinWithModel(kConfig);
  const std::string rows = R"({"prompt":"a","chosen":"b","rejected":"c"})"
                           "\n";
  ASSERT_TRUE(Upload(rows).ok());
  v1::SubmitJobRequest request = Request(
      "[job]\nkind = \"evaluate\"\nmodel = \"/models/tiny\"\ndata = \"rows.jsonl\"\n"
      "[compute]\ngpu_type = \"CPU\"\ngpu_count = 1\nnodes = 1\ngpus_per_node = 1\n"
      "[evaluate]\nmetrics = [\"f1\"]\n");
  request.mutable_files(0)->set_sha256(io::Sha256Hex(rows));
  EXPECT_THAT(Problems(request), testing::IsEmpty());
}

TEST_F(IntakeTest, AGroupIsKeptWithItsJobsAndListsThemAlone) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  v1::SubmitJobRequest request = Request();
  ASSERT_TRUE(intake_.Submit(request, "local").ok()) << "of no group";
  Set(request, "job.group", "v2's \"lr\"");
  const auto first = intake_.Submit(request, "local");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->problems, testing::IsEmpty());
  EXPECT_EQ(first->job.group(), "v2's \"lr\"");
  const auto listed = [&](const std::string& group) {
    store::JobFilter filter;
    filter.group = group;
    return jobs_->List(filter)->jobs;
  };
  ASSERT_EQ(listed("v2's \"lr\"").size(), 1u);
  EXPECT_EQ(listed("v2's \"lr\"")[0].name(), first->job.name());
  EXPECT_EQ(listed("v2's \"lr\"")[0].group(), "v2's \"lr\"");
  EXPECT_EQ(listed("").size(), 2u);
  EXPECT_TRUE(listed("v").empty());
  EXPECT_TRUE(listed("%").empty());
  Set(request, "job.group", std::string(129, 'g'));
  EXPECT_THAT(Problems(request),
              testing::ElementsAre(testing::HasSubstr("job.group: has 129 bytes")));
  Set(request, "job.group", "a\nb");
  EXPECT_THAT(Problems(request), testing::ElementsAre(testing::HasSubstr("job.group: holds")));
}

TEST_F(IntakeTest, AJobFileIsReadByTheFormThatItsNameSays) {
  const auto worker = JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  v1::SubmitJobRequest request = Request(
      "job: {model: /models/tiny, data: rows.jsonl}\ncompute: {gpu_type: CPU}\n"
      "hyperparameters: {per_device_batch: 2}\n");
  request.set_file_name("first.yaml");
  const auto made = intake_.Submit(request, "local");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->problems, testing::IsEmpty());
  EXPECT_EQ(made->job.display_name(), "first");
  request.set_file_name("first.json");
  EXPECT_THAT(Problems(request), testing::ElementsAre(testing::HasSubstr(": is not JSON: ")));
  request.set_file_name("first");
  EXPECT_THAT(Problems(request), testing::IsEmpty());
}

TEST_F(IntakeTest, CallsSideBySideCannotPassTheLimitOfWaitingJobsTogether) {
  Limit({.project = "default", .max_pending = 2});
  JobRecord job;
  job.project = "default";
  job.spec.emplace();
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

TEST_F(IntakeTest, WhatASubmitWouldRefuseIsToldWhenTheTextIsResolvedForOne) {
  JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kRows).ok());
  v1::SubmitJobRequest first = Request();
  first.set_request_id("first");
  const std::string name = intake_.Submit(first, "local")->job.name();
  v1::ResolveJobRequest request;
  request.set_source_text(std::string(kJobFile) +
                          "[scheduling]\npriority = \"urgent\"\nafter = [\"job-none\"]\n");
  request.set_file_name("job.toml");
  Limit({.project = "default", .max_priority = 1});
  const auto plain = intake_.Resolve(request);
  EXPECT_EQ(plain->problems_size(), 0);
  EXPECT_FALSE(plain->checked_for_submit());
  request.set_for_submit(true);
  const auto refused = intake_.Resolve(request);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_TRUE(refused->checked_for_submit());
  std::map<std::string, int> lines;
  for (const v1::Problem& problem : refused->problems()) lines[problem.key()] = problem.line();
  EXPECT_EQ(lines,
            (std::map<std::string, int>{{"scheduling.priority", 10}, {"scheduling.after", 11}}));
  EXPECT_EQ(refused->needed_files_size(), 1) << "what is wrong with it is told beside them";
  request.set_source_text(kJobFile);
  EXPECT_EQ(intake_.Resolve(request)->problems_size(), 0);
  Limit({.project = "default", .max_pending = 1});
  EXPECT_TRUE(absl::IsResourceExhausted(intake_.Resolve(request).status()));
  request.set_request_id("first");
  EXPECT_TRUE(intake_.Resolve(request).ok()) << "a repeat is only told again";
  request.set_request_id("with\nline");
  EXPECT_TRUE(absl::IsInvalidArgument(intake_.Resolve(request).status()));
  EXPECT_EQ(jobs_->List({})->jobs.size(), 1u) << "nothing was stored";
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

// Each key of the file repeats the file's name, each variable is compared with all names, and each
// job of a sweep repeats its changes: a request of 4 MiB would take minutes and gigabytes.
TEST_F(IntakeTest, WhatIsSaidBesideAFileHasALimit) {
  JoinWithModel(kConfig);
  const auto refusal = [&](const std::function<void(v1::ResolveJobRequest&)>& change) {
    v1::ResolveJobRequest request;
    request.set_source_text(kJobFile);
    request.set_file_name("job.toml");
    change(request);
    return std::string(Message(intake_.Resolve(request).status()));
  };
  const auto add = [](v1::ResolveJobRequest& request, int count, const std::string& key) {
    for (int i = 0; i < count; ++i) {
      v1::Override* added = request.add_overrides();
      added->set_key(key + std::to_string(i));
      added->set_value("1");
      added->set_kind(v1::Override::ENVIRONMENT);
    }
  };
  EXPECT_EQ(refusal([&](auto& request) { add(request, 1000, "TRAIN_NONSENSE_"); }), "");
  EXPECT_EQ(refusal([&](auto& request) { add(request, 100'000, "TRAIN_NONSENSE_"); }),
            "100000 changes of keys (--set, flags, variables); at most 1000 are taken");
  EXPECT_EQ(refusal([&](auto& request) { request.set_file_name(std::string(3 << 20, 'f')); }),
            "the name of the job file has 3145728 bytes; at most 4096 are taken");
  EXPECT_EQ(refusal([&](auto& request) { add(request, 1, std::string(5000, 'k')); }),
            "a change of \"" + std::string(80, 'k') + "\" is no change of a key");
  EXPECT_EQ(refusal([&](auto& request) {
              add(request, 1, "lora.r");
              request.mutable_overrides(0)->set_value(std::string(3 << 20, '1'));
            }),
            "changes of keys (--set, flags, variables) take more than 1 MiB");
  Sweeps sweeps(*store_, intake_, *jobs_);
  v1::SubmitSweepRequest sweep;
  *sweep.mutable_job() = Request();
  for (int i = 0; i < 100'000; ++i) {
    sweep.add_axes()->set_key("k" + std::to_string(i));
    sweep.mutable_axes(i)->add_values("1");
  }
  EXPECT_EQ(Message(sweeps.Submit(sweep, "local").status()),
            "the sweep changes 100000 keys; at most 100 are taken");
}

TEST_F(IntakeTest, ARowLongerThanTheModelWasMadeForIsAWarningThatNamesBoth) {
  std::string config = kConfig;
  config.insert(1, "\"max_position_embeddings\":1024,");
  JoinWithModel(config.c_str());
  const auto warnings = [&](const std::string& keys) {
    v1::ResolveJobRequest request;
    request.set_source_text(std::string(kJobFile) + "[hyperparameters]\n" + keys + "\n");
    request.set_file_name("job.toml");
    const auto response = intake_.Resolve(request);
    EXPECT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->problems_size(), 0);
    return response->warnings();
  };
  EXPECT_EQ(warnings("sequence_length = 1024").size(), 0);
  const auto longer = warnings("sequence_length = 1025");
  ASSERT_EQ(longer.size(), 1);
  EXPECT_EQ(longer[0].line(), 10);
  EXPECT_NE(longer[0].message().find("sequence_length = 1025 is more than the 1024 positions"),
            std::string::npos)
      << longer[0].message();
}

TEST_F(IntakeTest, ASweepThatWouldMakeTheSameJobTwiceIsRefused) {
  JoinWithModel(kConfig);
  Sweeps sweeps(*store_, intake_, *jobs_);
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
    return std::string(Message(sweeps.Submit(request, "local").status()));
  };
  EXPECT_EQ(refusal({{"lora.r", "8,16,8"}}),
            "lora.r has the value 8 twice: two jobs would be the same");
  EXPECT_EQ(refusal({{"learning_rate", "1e-4,0.0001"}}),
            "learning_rate has the value 0.0001 twice: two jobs would be the same");
  EXPECT_EQ(refusal({{"lora.r", "8"}, {"lora_r", "16"}}),
            "lora_r is given twice: name all its values at once");
  EXPECT_EQ(refusal({{"lora.r", "8,16"}, {"hyperparameters.seed", "1,2"}}), "");
}

TEST_F(IntakeTest, WhatLiesBelowAJobsFolderIsThereForItsProjectAndForAdmins) {
  JoinWithModel(kConfig);
  JobRecord alphas;
  alphas.id = "job-abcdefgh23";
  alphas.project = "alpha";
  alphas.owner = "ann";
  alphas.gpu_type = "CPU";
  alphas.spec.emplace();
  ASSERT_TRUE(jobs_->Submit(alphas, {}).ok());
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) -> absl::Status {
                    SFT_RETURN_IF_ERROR(
                        store::PutUser(db, {"ann", false, {{"alpha", Role::kSubmitter}}}, 1));
                    SFT_RETURN_IF_ERROR(
                        store::PutUser(db, {"bob", false, {{"beta", Role::kSubmitter}}}, 1));
                    return store::PutUser(db, {"root", true, {}}, 1);
                  })
                  .ok());
  const auto text = [](const std::string& model) {
    return "[job]\nmodel = \"" + model +
           "\"\ndata = \"rows.jsonl\"\n[compute]\ngpu_type = \"CPU\"\ngpu_count = 1\nnodes = "
           "1\ngpus_per_node = 1\n";
  };
  const auto said = [&](const std::string& who, const std::string& project,
                        const std::string& model) -> std::string {
    v1::SubmitJobRequest request = Request(text(model));
    request.set_project(project);
    request.set_validate_only(true);
    const auto outcome = intake_.Submit(request, who);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    v1::ResolveJobRequest dry;
    dry.set_source_text(text(model));
    dry.set_file_name("job.toml");
    EXPECT_EQ(intake_.Resolve(dry, who)->problems().empty(), outcome->problems.empty());
    return outcome->problems.empty() ? "" : outcome->problems[0].message;
  };
  const std::string there = "/models/job-abcdefgh23/model", none = "/models/job-22222222aa/model";
  EXPECT_EQ(said("ann", "alpha", there), "");
  EXPECT_EQ(said("root", "beta", there), "");
  std::string refused = said("bob", "beta", there);
  EXPECT_NE(refused, "");
  const std::string of_none = said("bob", "beta", none);
  while (refused.find("abcdefgh23") != refused.npos) {
    refused.replace(refused.find("abcdefgh23"), 10, "22222222aa");
  }
  EXPECT_EQ(refused, of_none) << "as of a job that is nowhere";
  for (const char* path : {"/models//x/../JOB-ABCDEFGH23/model", "/models/./job-abcdefgh23/"}) {
    EXPECT_NE(said("bob", "beta", path), "") << path;
  }
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

class AnsweringIntakeTest : public IntakeTest {
 protected:
  static std::string JobFile(const std::string& adapter = "",
                             const std::string& model = "/models/tiny") {
    return "[job]\nkind = \"generate\"\nmodel = \"" + model +
           "\"\ndata = \"rows.jsonl\"\nadapter = \"" + adapter +
           "\"\n[compute]\ngpu_type = \"CPU\"\ngpu_count = 2\n";
  }
  v1::SubmitJobRequest RequestFor(const std::string& text) {
    v1::SubmitJobRequest request = Request(text);
    request.mutable_files(0)->set_sha256(io::Sha256Hex(kPrompts));
    request.mutable_files(0)->set_client_path("rows.jsonl");
    return request;
  }
  // A job that has trained an adapter and delivered it.
  std::string Trained() {
    JoinWithModel(kConfig);
    EXPECT_TRUE(Upload(kRows).ok());
    const auto outcome = intake_.Submit(Request(), "local");
    EXPECT_TRUE(outcome.ok() && outcome->problems.empty());
    const std::string name = outcome->job.name();
    Tick();
    return name.substr(name.rfind('/') + 1);
  }
  void Succeed(const std::string& id, const std::string& kind = "adapter") {
    const absl::Status done = store_->Write([&](Database& db) -> absl::Status {
      SFT_RETURN_IF_ERROR(db.Execute("UPDATE jobs SET state = 5"));  // SUCCEEDED
      ArtifactRecord artifact;
      artifact.id = "artifact-" + kind;
      artifact.job_id = id;
      artifact.attempt_uid = Uid(id);
      artifact.kind = kind;
      artifact.created_us = kind == "adapter" ? 1 : 2;
      artifact.node_path = kind == "model" ? "/shared/x/model" : "";
      artifact.node = kind == "model" ? "a" : "";
      artifact.files = {{"adapter_config.json", io::Sha256Hex("config"), 6},
                        {"adapter_model.safetensors", io::Sha256Hex("weights"), 7}};
      return store::PutArtifact(db, artifact).status();
    });
    EXPECT_TRUE(done.ok()) << done;
  }
  std::vector<JobFileRecord> Files(const std::string& name) {
    std::vector<JobFileRecord> files;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(files,
                                           store::FilesOfJob(db, name.substr(name.rfind('/') + 1)));
                      return absl::OkStatus();
                    })
                    .ok());
    return files;
  }

  static constexpr char kPrompts[] = "{\"prompt\":\"a\"}\n";
};

TEST_F(AnsweringIntakeTest, AJobThatAnswersTakesTheFilesOfTheAdapterThatAnotherDelivered) {
  const std::string id = Trained();
  ASSERT_TRUE(Upload(kPrompts).ok());
  EXPECT_THAT(
      Problems(RequestFor(JobFile(id))),
      testing::ElementsAre("job.adapter: " + id +
                           " is PREPARING: an adapter is there once its job has succeeded"));
  Succeed(id);
  const auto outcome = intake_.Submit(RequestFor(JobFile(id)), "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(outcome->problems.empty()) << outcome->problems[0].message;
  EXPECT_EQ(outcome->job.kind(), v1::Job::GENERATE);
  const std::vector<JobFileRecord> files = Files(outcome->job.name());
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].key, "job.adapter/adapter_config.json");
  EXPECT_EQ(files[1].sha256, io::Sha256Hex("weights"));
  EXPECT_EQ(files[2].key, "job.data");
  std::string user;
  ASSERT_TRUE(store_
                  ->Read([&](Database& db) -> absl::Status {
                    SFT_ASSIGN_OR_RETURN(user, store::LiveJobWithAdapter(db, "artifact-adapter"));
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_TRUE(outcome->job.name().ends_with(user)) << "it may not be removed now";
}

TEST_F(AnsweringIntakeTest, AnAdapterThatDoesNotFitIsRefusedWithWhatWouldBeRight) {
  const std::string id = Trained();
  ASSERT_TRUE(Upload(kPrompts).ok());
  Succeed(id);
  EXPECT_THAT(Problems(RequestFor(JobFile(id, "/models/other"))),
              testing::ElementsAre("job.adapter: " + id +
                                   " trained an adapter for /models/tiny, not for /models/other: "
                                   "set job.model = \"/models/tiny\""));
  EXPECT_THAT(
      Problems(RequestFor(JobFile("job-nobody"))),
      testing::ElementsAre(testing::HasSubstr("must be a job that has delivered an adapter")));
  Succeed(id, "model");
  EXPECT_THAT(Problems(RequestFor(JobFile(id))),
              testing::ElementsAre(testing::HasSubstr(
                  "delivered a full model: set job.model = \"/shared/x/model\"")));
}

TEST_F(AnsweringIntakeTest, AJobAsModelStandsForTheFullModelThatItDelivered) {
  const std::string id = Trained();
  ASSERT_TRUE(Upload(kPrompts).ok());
  const auto problems = [&](const std::string& model) {
    return Problems(RequestFor(JobFile("", model)));
  };
  EXPECT_THAT(problems(id),
              testing::ElementsAre("job.model: " + id +
                                   " is PREPARING: a model is there once its job has succeeded"));
  Succeed(id);
  EXPECT_THAT(problems(id), testing::ElementsAre(testing::HasSubstr(
                                "delivered an adapter: set job.model = \"/models/tiny\" and "
                                "job.adapter = \"" +
                                id)));
  EXPECT_THAT(problems("job-nobody"), testing::ElementsAre(testing::HasSubstr("job-nobody")));
  Succeed(id, "model");
  // No node of this test has it, which shows whose folder is asked for.
  EXPECT_THAT(problems(id), testing::ElementsAre(testing::HasSubstr("/shared/x/model")));
}

TEST_F(AnsweringIntakeTest, RowsThatAreNoPromptsAreRefusedAndRowsToLearnFromAreNotNeeded) {
  JoinWithModel(kConfig);
  ASSERT_TRUE(Upload(kPrompts).ok());
  EXPECT_TRUE(Problems(RequestFor(JobFile())).empty()) << "training would need answers";
  ASSERT_TRUE(Upload(kRows).ok());
  v1::SubmitJobRequest request = RequestFor(JobFile());
  request.mutable_files(0)->set_sha256(io::Sha256Hex(kRows));
  EXPECT_THAT(Problems(request),
              testing::ElementsAre(
                  "job.data: rows.jsonl: line 1: the row has neither \"messages\" nor \"prompt\""));
}

TEST_F(AnsweringIntakeTest, AnExportTakesTheRowsOfTheJobThatTrainedTheAdapter) {
  const std::string id = Trained();
  Succeed(id);
  const auto request = [&](const std::string& adapter) {
    v1::SubmitJobRequest made =
        Request("[job]\nkind = \"export\"\nmodel = \"/models/tiny\"\nadapter = \"" + adapter +
                "\"\n[compute]\ngpu_type = \"CPU\"\n");
    made.clear_files();
    return made;
  };
  const auto outcome = intake_.Submit(request(id), "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_TRUE(outcome->problems.empty()) << outcome->problems[0].message;
  EXPECT_EQ(outcome->job.kind(), v1::Job::EXPORT);
  const std::vector<JobFileRecord> files = Files(outcome->job.name());
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[2].key, "job.data");
  EXPECT_EQ(files[2].sha256, io::Sha256Hex(kRows));
  EXPECT_THAT(Problems(request("/models/adapter")),
              testing::ElementsAre(testing::HasSubstr("job.data: is missing: who trained")));
  ASSERT_TRUE(
      store_->Write([](Database& db) { return db.Execute("UPDATE jobs SET state = 5"); }).ok());
  const std::string exported = outcome->job.name();
  EXPECT_THAT(Problems(request(exported.substr(exported.rfind('/') + 1))),
              testing::ElementsAre(testing::HasSubstr("exports what another job has trained")));
}

}  // namespace
}  // namespace sft::server
