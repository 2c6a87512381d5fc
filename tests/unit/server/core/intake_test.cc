#include "common/io/sha256.h"
#include "server/core/job_intake.h"
#include "server/core/uploads.h"
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
    UploadSession session(*blobs_, *store_, clock_, "local");
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
  // The problems' texts, each "key: message".
  std::vector<std::string> Problems(const v1::SubmitJobRequest& request) {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    std::vector<std::string> texts;
    for (const auto& problem : outcome->problems)
      texts.push_back(problem.key + ": " + problem.message);
    return texts;
  }

  static constexpr char kRows[] = "{\"text\":\"a\"}\n";
  std::unique_ptr<BlobStore> blobs_;
  FileRelay relay_;
  Planner planner_;
  JobIntake intake_;
};

TEST_F(IntakeTest, AJobWhoseFilesAreThereIsStoredWithAllThatWasSent) {
  Join("a", "CPU", 2);
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

TEST_F(IntakeTest, AFileThatWasNotUploadedIsNamed) {
  Join("a", "CPU", 2);
  const auto outcome = intake_.Submit(Request(), "local");
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->missing_files, std::vector<std::string>{"job.data"});
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
}

TEST_F(IntakeTest, ValidateOnlyChecksEverythingAndStoresNothing) {
  Join("a", "CPU", 2);
  v1::SubmitJobRequest request = Request();
  request.set_validate_only(true);
  request.clear_files();
  EXPECT_TRUE(Problems(request).empty());
  EXPECT_TRUE(jobs_->List({})->jobs.empty());
}

TEST_F(IntakeTest, AllProblemsOfTheFileComeAtOnce) {
  Join("a", "CPU", 2);
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
  EXPECT_EQ(problems[0], "compute.variant: no node has CPU-2x; the largest is CPU-1x");
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
  Join("a", "CPU", 2);
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
  const absl::Status status = Upload("{\"text\":1}\n");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(Message(status).find("rows.jsonl: line 1: "), 0u) << status;
  EXPECT_FALSE(blobs_->Find(io::Sha256Hex("{\"text\":1}\n"))->complete);
}

TEST_F(IntakeTest, AnUploadOfACompleteBlobIsFine) {
  ASSERT_TRUE(Upload(kRows).ok());
  EXPECT_TRUE(Upload(kRows).ok());
}

}  // namespace
}  // namespace sft::server
