// Two projects' users and nodes of one server, over TLS: what one of them sends or delivers is
// neither seen, used nor disturbed by another.

#include <gmock/gmock.h>

#include "common/base/version.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "tests/unit/server/services/secure_server.h"

namespace sft::server {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using Purpose = v1::UploadBlobRequest::Purpose;

// A worker's stream, read by the test.
class Worker {
 public:
  Worker(const std::shared_ptr<grpc::Channel>& channel, const std::string& node)
      : node_(node), channel_(channel), stub_(v1::WorkerService::NewStub(channel)) {
    rpc::SetDeadline(context_, std::chrono::seconds(120));
    stream_ = stub_->Session(&context_);
    v1::WorkerMessage hello;
    v1::Register& message = *hello.mutable_register_();
    message.set_node(node);
    message.set_incarnation("life-of-" + node);
    message.set_version(kVersion);
    message.set_protocol(kProtocol);
    message.set_hostname("host-of-" + node);
    v1::Slot* slot = message.add_slots();
    slot->set_gpu_type("CPU");
    slot->set_healthy(true);
    v1::Model* model = message.add_models();
    model->set_id("tiny");
    model->set_path("/models/tiny");
    model->set_config_json(
        R"({"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_attention_heads":4,)"
        R"("num_key_value_heads":2,"num_hidden_layers":2,"vocab_size":256})");
    EXPECT_TRUE(stream_->Write(hello));
  }
  // Tells of the models that it found since.
  void Find(const std::vector<std::string>& paths) {
    v1::WorkerMessage message;
    for (const std::string& path : paths) {
      v1::Model* model = message.mutable_observed()->add_models();
      model->set_id(path.substr(1));
      model->set_path(path);
    }
    message.mutable_observed()->set_sequence(1);
    EXPECT_TRUE(stream_->Write(message));
    v1::ServerMessage answer;
    while (stream_->Read(&answer) && !answer.has_observed_answer()) continue;
    EXPECT_TRUE(answer.has_observed_answer());
  }
  ~Worker() {
    context_.TryCancel();
    (void)stream_->Finish();
  }

  // Waits until the server wants an attempt here.
  v1::DesiredAttempt Attempt() {
    v1::ServerMessage message;
    while (stream_->Read(&message)) {
      if (message.has_desired() && message.desired().attempts_size() > 0) {
        return message.desired().attempts(0);
      }
    }
    ADD_FAILURE() << "the stream of " << node_ << " ended";
    return {};
  }
  grpc::Status Stat(const std::string& content, const std::string& attempt, Purpose purpose,
                    v1::StatBlobResponse* response) {
    v1::StatBlobRequest request;
    request.set_sha256(io::Sha256Hex(content));
    request.set_purpose(purpose);
    request.set_attempt_uid(attempt);
    request.set_node(node_);
    grpc::ClientContext context;
    return v1::DataService::NewStub(channel_)->StatBlob(&context, request, response);
  }
  // Brings the content, or its first bytes only.
  grpc::Status Bring(const std::string& content, const std::string& attempt, Purpose purpose,
                     size_t begin = 0, size_t end = std::string::npos) {
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(static_cast<int64_t>(content.size()));
    message.set_purpose(purpose);
    message.set_attempt_uid(attempt);
    message.set_node(node_);
    message.set_offset(static_cast<int64_t>(begin));
    message.set_data(content.substr(begin, end - begin));
    grpc::ClientContext context;
    v1::UploadBlobResponse response;
    const auto writer = v1::DataService::NewStub(channel_)->UploadBlob(&context, &response);
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }
  v1::CommitArtifactRequest ArtifactOf(const v1::DesiredAttempt& attempt,
                                       const std::string& content) const {
    v1::CommitArtifactRequest request;
    request.set_attempt_uid(attempt.attempt_uid());
    request.set_epoch(attempt.epoch());
    request.set_node(node_);
    request.set_kind("adapter");
    v1::ArtifactFile& file = *request.add_files();
    file.set_path("adapter_model.safetensors");
    file.mutable_blob()->set_sha256(io::Sha256Hex(content));
    file.mutable_blob()->set_size(static_cast<int64_t>(content.size()));
    return request;
  }
  grpc::Status Commit(const v1::CommitArtifactRequest& request) {
    v1::Artifact artifact;
    grpc::ClientContext context;
    return stub_->CommitArtifact(&context, request, &artifact);
  }
  grpc::Status CommitCheckpoint(const v1::DesiredAttempt& attempt, const std::string& content) {
    v1::CommitCheckpointRequest request;
    request.set_attempt_uid(attempt.attempt_uid());
    request.set_epoch(attempt.epoch());
    request.set_node(node_);
    request.set_step(1);
    request.set_reason("steps");
    *request.mutable_files() = ArtifactOf(attempt, content).files();
    request.set_bytes(static_cast<int64_t>(content.size()));
    v1::CommitCheckpointResponse response;
    grpc::ClientContext context;
    return stub_->CommitCheckpoint(&context, request, &response);
  }

 private:
  const std::string node_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  const std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::ServerMessage>> stream_;
};

// Ann of project alpha and Bob of project beta.
class TenancyTest : public NodeTest {
 protected:
  TenancyTest()
      : ann_(With(UserToken("ann", "alpha", v1::SUBMITTER))),
        bob_(With(UserToken("bob", "beta", v1::SUBMITTER))) {}

  std::unique_ptr<Worker> JoinAs(const std::string& node, const std::string& key) {
    std::string certificate;
    EXPECT_TRUE(Join(node, key, join_token_, &certificate).ok());
    return std::make_unique<Worker>(As(key, certificate), node);
  }
  // A job that is given to the one node which is free.
  v1::Job SubmitTo(const std::shared_ptr<grpc::Channel>& user) {
    v1::Job job;
    EXPECT_TRUE(Upload(user, kSecretRows).ok());
    const grpc::Status submitted = Submit(user, &job);
    EXPECT_TRUE(submitted.ok()) << submitted.error_message();
    return job;
  }

  const std::shared_ptr<grpc::Channel> ann_, bob_;
};

TEST_F(TenancyTest, AnUploadOfNoKnownPurposeIsRefusedWhoeverSendsIt) {
  ASSERT_TRUE(Upload(ann_, kSecretRows).ok());
  std::string certificate;
  ASSERT_TRUE(Join("node-a", key_, join_token_, &certificate).ok());
  const auto node = As(key_, certificate);
  const auto admin = With(admin_token_);
  for (const auto& channel : {bob_, node, admin}) {
    for (const int purpose : {0, 4, 99, -1}) {
      v1::StatBlobRequest question;
      question.set_sha256(io::Sha256Hex(kSecretRows));
      question.set_purpose(static_cast<Purpose>(purpose));
      v1::StatBlobResponse answer;
      grpc::ClientContext context;
      const auto data = v1::DataService::NewStub(channel);
      const grpc::Status asked = data->StatBlob(&context, question, &answer);
      EXPECT_EQ(asked.error_code(), StatusCode::INVALID_ARGUMENT) << asked.error_message();
      EXPECT_THAT(asked.error_message(), HasSubstr("purpose"));
      EXPECT_FALSE(answer.complete());
      v1::UploadBlobRequest upload;
      upload.set_sha256(io::Sha256Hex("anything"));
      upload.set_size(8);
      upload.set_purpose(static_cast<Purpose>(purpose));
      upload.set_data("any");
      v1::UploadBlobResponse response;
      grpc::ClientContext second;
      const auto writer = data->UploadBlob(&second, &response);
      writer->Write(upload);
      writer->WritesDone();
      EXPECT_EQ(writer->Finish().error_code(), StatusCode::INVALID_ARGUMENT);
    }
  }
  EXPECT_TRUE(io::ListDir(dir_ + "/blobs/uploads")->empty()) << "nothing was begun";
}

TEST_F(TenancyTest, ANodeDeliversWhatItsAttemptsMakeAndNothingElse) {
  const auto a = JoinAs("node-a", key_);
  EXPECT_EQ(a->Bring("weights", "", v1::UploadBlobRequest::ARTIFACT).error_code(),
            StatusCode::FAILED_PRECONDITION)
      << "no attempt is on it";
  SubmitTo(ann_);
  const std::string on_a = a->Attempt().attempt_uid();
  const auto b = JoinAs("node-b", other_key_);
  SubmitTo(bob_);
  const std::string on_b = b->Attempt().attempt_uid();
  for (const Purpose purpose :
       {v1::UploadBlobRequest::ARTIFACT, v1::UploadBlobRequest::CHECKPOINT}) {
    v1::StatBlobResponse answer;
    EXPECT_EQ(a->Stat("weights", on_b, purpose, &answer).error_code(),
              StatusCode::FAILED_PRECONDITION);
    EXPECT_EQ(a->Bring("weights", on_b, purpose).error_code(), StatusCode::FAILED_PRECONDITION);
    // What one has begun, or brought, the other neither sees nor goes on with.
    ASSERT_EQ(a->Bring("weights", on_a, purpose, 0, 3).error_code(), StatusCode::OUT_OF_RANGE);
    ASSERT_TRUE(b->Stat("weights", on_b, purpose, &answer).ok());
    EXPECT_EQ(answer.received(), 0);
    ASSERT_TRUE(b->Bring("weights", on_b, purpose).ok());
    ASSERT_TRUE(b->Stat("weights", on_b, purpose, &answer).ok());
    EXPECT_TRUE(answer.complete());
    ASSERT_TRUE(a->Stat("weights", on_a, purpose, &answer).ok());
    EXPECT_FALSE(answer.complete());
    EXPECT_EQ(answer.received(), 3);
    EXPECT_TRUE(a->Bring("weights", on_a, purpose, 3).ok());
    // A worker of the version before names no attempt.
    EXPECT_TRUE(a->Bring("old weights", "", purpose).ok());
  }
}

TEST_F(TenancyTest, ModelsBelowAJobsFolderAreShownToItsProjectAlone) {
  const auto a = JoinAs("node-a", key_);
  const v1::Job job = SubmitTo(ann_);
  const std::string id = job.name().substr(job.name().rfind('/') + 1);
  a->Find({"/models/tiny", "/shared/" + id + "/model", "/shared/job-abcdefgh23/model"});
  const auto seen = [](const std::shared_ptr<grpc::Channel>& user) {
    v1::ListModelsResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(v1::ClusterService::NewStub(user)->ListModels(&context, {}, &response).ok());
    std::vector<std::string> paths;
    for (const v1::NodeModel& model : response.models()) paths.push_back(model.model().path());
    return paths;
  };
  using testing::UnorderedElementsAre;
  EXPECT_THAT(seen(ann_), UnorderedElementsAre("/models/tiny", "/shared/" + id + "/model"));
  EXPECT_THAT(seen(bob_), UnorderedElementsAre("/models/tiny"));
  EXPECT_THAT(seen(With(admin_token_)), testing::SizeIs(3));
}

TEST_F(TenancyTest, WhoKnowsAHashDoesNotHoldUpItsDelivery) {
  const auto a = JoinAs("node-a", key_);
  SubmitTo(ann_);
  const std::string attempt = a->Attempt().attempt_uid();
  const std::string content = "{\"text\":\"what a node will deliver\"}\n";
  grpc::ClientContext context;
  rpc::SetDeadline(context, std::chrono::seconds(120));
  v1::UploadBlobResponse response;
  const auto data = v1::DataService::NewStub(bob_);
  const auto writer = data->UploadBlob(&context, &response);
  v1::UploadBlobRequest message;
  message.set_sha256(io::Sha256Hex(content));
  message.set_size(static_cast<int64_t>(content.size()));
  message.set_purpose(v1::UploadBlobRequest::DATASET);
  message.set_data(content.substr(0, 5));
  ASSERT_TRUE(writer->Write(message));
  EXPECT_TRUE(a->Bring(content, attempt, v1::UploadBlobRequest::ARTIFACT).ok());
  message.Clear();
  message.set_data(content.substr(5));
  ASSERT_TRUE(writer->Write(message));
  writer->WritesDone();
  EXPECT_TRUE(writer->Finish().ok());
}

TEST_F(TenancyTest, ANodeCommitsOnlyWhatItHasBroughtForThatAttempt) {
  const auto a = JoinAs("node-a", key_);
  v1::Job job = SubmitTo(bob_);
  const v1::DesiredAttempt attempt = a->Attempt();
  const std::string secret = "{\"text\":\"only alpha has this\"}\n";
  ASSERT_TRUE(Upload(ann_, secret).ok());
  const grpc::Status stolen = a->Commit(a->ArtifactOf(attempt, secret));
  EXPECT_EQ(stolen.error_code(), StatusCode::ABORTED) << "a tenant would be handed another's data";
  EXPECT_THAT(stolen.error_message(), HasSubstr("adapter_model.safetensors"));
  EXPECT_EQ(a->CommitCheckpoint(attempt, secret).error_code(), StatusCode::ABORTED);
  v1::GetArtifactRequest get;
  get.set_name(job.name());
  v1::Artifact artifact;
  grpc::ClientContext context;
  EXPECT_EQ(v1::DataService::NewStub(bob_)->GetArtifact(&context, get, &artifact).error_code(),
            StatusCode::NOT_FOUND);
  // Brought as a checkpoint's it is no artifact's, and the other way round.
  ASSERT_TRUE(a->Bring("mine", attempt.attempt_uid(), v1::UploadBlobRequest::CHECKPOINT).ok());
  EXPECT_EQ(a->Commit(a->ArtifactOf(attempt, "mine")).error_code(), StatusCode::ABORTED);
  EXPECT_TRUE(a->CommitCheckpoint(attempt, "mine").ok());
  ASSERT_TRUE(a->Bring("mine", attempt.attempt_uid(), v1::UploadBlobRequest::ARTIFACT).ok());
  EXPECT_TRUE(a->Commit(a->ArtifactOf(attempt, "mine")).ok());
}

}  // namespace
}  // namespace sft::server
