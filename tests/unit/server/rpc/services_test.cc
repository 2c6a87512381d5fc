// The whole server in this process, spoken to over a gRPC channel inside it.

#include <gtest/gtest.h>

#include "common/base/version.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/app/server.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"
#include "tests/unit/server/rpc/raw_call.h"

namespace sft::server {
namespace {

constexpr char kTwoRowJob[] = R"([job]
model = "/models/tiny"
data = "rows.jsonl"
[compute]
gpu_type = "CPU"
gpu_count = 1
nodes = 1
gpus_per_node = 1
)";
constexpr char kTwoRows[] = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";

class ServicesTest : public testing::Test {
 protected:
  ServicesTest() : dir_(io::MakeTempDir("services-test").value()) {
    Server::Settings settings;
    settings.data_dir = dir_;
    settings.listen = {"127.0.0.1", 0};
    settings.http = "off";
    settings.upload_patience = std::chrono::seconds(2);
    auto server = Server::Start(settings, Clock::Real());
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const auto channel = server_->InProcessChannel();
    jobs_ = v1::JobService::NewStub(channel);
    data_ = v1::DataService::NewStub(channel);
    cluster_ = v1::ClusterService::NewStub(channel);
    workers_ = v1::WorkerService::NewStub(channel);
  }
  ~ServicesTest() override {
    server_.reset();
    (void)io::RemoveAll(dir_);
  }

  grpc::Status Upload(const std::string& content, v1::UploadBlobResponse* response) {
    grpc::ClientContext context;
    rpc::SetDeadline(context, rpc::kUnaryDeadline);
    const auto writer = data_->UploadBlob(&context, response);
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(static_cast<int64_t>(content.size()));
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    writer->Write(message);
    message.Clear();
    message.set_data(content);
    writer->Write(message);
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status Submit(const std::string& text, v1::Job* job, const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    request.set_source_text(text);
    request.set_file_name("job.toml");
    request.set_request_id(request_id);
    v1::JobFile* file = request.add_files();
    file->set_key("job.data");
    file->set_sha256(io::Sha256Hex(kTwoRows));
    grpc::ClientContext context;
    rpc::SetDeadline(context, rpc::kUnaryDeadline);
    return jobs_->SubmitJob(&context, request, job);
  }

  const std::string dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::DataService::Stub> data_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
};

TEST_F(ServicesTest, SaysItsVersionAndProtocol) {
  grpc::ClientContext context;
  v1::ServerInfo info;
  ASSERT_TRUE(cluster_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.version(), kVersion);
  EXPECT_EQ(info.protocol(), kProtocol);
}

TEST_F(ServicesTest, AProblemIsAViolationWithKeyAndLine) {
  v1::Job job;
  const grpc::Status status = Submit(std::string(kTwoRowJob) + "gpu_cout = 2\n", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const auto violations = rpc::ViolationsOf(status);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_NE(violations[0].field.find("gpu_cout"), std::string::npos) << violations[0].field;
  EXPECT_EQ(violations[0].description.find("line 9: "), 0u) << violations[0].description;
}

TEST_F(ServicesTest, AMissingFileHasItsReason) {
  v1::Job job;
  const grpc::Status status = Submit(kTwoRowJob, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(rpc::ReasonOf(status), "FILE_NOT_UPLOADED");
}

TEST_F(ServicesTest, AJobIsUploadedSubmittedListedWatchedAndCancelled) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  EXPECT_EQ(uploaded.rows(), 2);
  v1::Job job, again;
  const grpc::Status submitted = Submit(kTwoRowJob, &job, "r-1");
  ASSERT_TRUE(submitted.ok()) << submitted.error_message();
  ASSERT_TRUE(Submit(kTwoRowJob, &again, "r-1").ok());
  EXPECT_EQ(again.name(), job.name());
  EXPECT_EQ(job.owner(), "local") << "the interceptor names the principal";
  grpc::ClientContext list_context;
  v1::ListJobsResponse list;
  ASSERT_TRUE(jobs_->ListJobs(&list_context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 1);
  grpc::ClientContext watch_context;
  v1::WatchJobRequest watch;
  watch.set_name(job.name());
  const auto reader = jobs_->WatchJob(&watch_context, watch);
  v1::Job seen;
  ASSERT_TRUE(reader->Read(&seen));
  grpc::ClientContext cancel_context;
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  ASSERT_TRUE(jobs_->CancelJob(&cancel_context, cancel, &job).ok());
  EXPECT_EQ(job.state(), v1::Job::CANCELLED);
  while (reader->Read(&seen)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(seen.state(), v1::Job::CANCELLED);
}

TEST_F(ServicesTest, TheJobsOfASweepHaveTheSourceThatTheyShareAndTogetherItIsLimited) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  const auto sweeps = v1::SchedulingService::NewStub(server_->InProcessChannel());
  v1::SubmitSweepRequest request;
  request.mutable_job()->set_source_text(kTwoRowJob);
  request.mutable_job()->set_file_name("job.toml");
  request.mutable_job()->set_request_id("sizes");
  request.mutable_job()->add_files()->set_key("job.data");
  request.mutable_job()->mutable_files(0)->set_sha256(io::Sha256Hex(kTwoRows));
  v1::SweepAxis* const axis = request.add_axes();
  axis->set_key("hyperparameters.n_epochs");
  for (const char* epochs : {"1", "2"}) axis->add_values(epochs);
  v1::SubmitSweepResponse response, again;
  grpc::ClientContext first, second, third;
  const grpc::Status made = sweeps->SubmitSweep(&first, request, &response);
  ASSERT_TRUE(made.ok()) << made.error_message();
  ASSERT_TRUE(sweeps->SubmitSweep(&second, request, &again).ok());
  ASSERT_EQ(response.jobs_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(again.jobs(i).name(), response.jobs(i).name());
    EXPECT_EQ(response.jobs(i).source_text() + again.jobs(i).source_text(), "");
    v1::GetJobRequest get;
    get.set_name(response.jobs(i).name());
    v1::Job job;
    grpc::ClientContext context;
    ASSERT_TRUE(jobs_->GetJob(&context, get, &job).ok());
    EXPECT_EQ(job.source_text(), kTwoRowJob);
  }
  request.mutable_job()->set_request_id("large");
  request.mutable_job()->mutable_source_text()->append("#" + std::string(1 << 19, 'x') + "\n");
  for (int i = 3; i < 300; ++i) axis->add_values(std::to_string(i));
  const grpc::Status refused = sweeps->SubmitSweep(&third, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(refused.error_message().find("submit it in parts"), std::string::npos)
      << refused.error_message();
}

TEST_F(ServicesTest, AClientCannotNameItsOwnPrincipal) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  grpc::ClientContext context;
  context.AddMetadata("sft-principal", "root");
  v1::SubmitJobRequest request;
  request.set_source_text(kTwoRowJob);
  request.set_file_name("job.toml");
  v1::JobFile* file = request.add_files();
  file->set_key("job.data");
  file->set_sha256(io::Sha256Hex(kTwoRows));
  v1::Job job;
  ASSERT_TRUE(jobs_->SubmitJob(&context, request, &job).ok());
  EXPECT_EQ(job.owner(), "local");
}

TEST_F(ServicesTest, AWorkersStreamIsWelcomedAndToldItsDesiredSet) {
  grpc::ClientContext context;
  const auto stream = workers_->Session(&context);
  v1::WorkerMessage hello;
  v1::Register* node = hello.mutable_register_();
  node->set_node("a");
  node->set_incarnation("life-1");
  node->set_protocol(kProtocol);
  v1::Slot* slot = node->add_slots();
  slot->set_gpu_type("CPU");
  slot->set_healthy(true);
  // Listed: the server need not ask for it.
  v1::Model* model = node->add_models();
  model->set_id("tiny");
  model->set_path("/models/tiny");
  model->set_config_json(
      R"({"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_attention_heads":4,)"
      R"("num_hidden_layers":2,"vocab_size":256})");
  ASSERT_TRUE(stream->Write(hello));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_EQ(message.welcome().refused(), "");
  EXPECT_GT(message.welcome().heartbeat_seconds(), 0);
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_TRUE(message.has_desired());
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  v1::Job job;
  ASSERT_TRUE(Submit(kTwoRowJob, &job).ok());
  // The set may be told again before the job is placed.
  do {
    ASSERT_TRUE(stream->Read(&message));
  } while (message.desired().attempts_size() == 0);
  ASSERT_EQ(message.desired().attempts_size(), 1);
  EXPECT_EQ(message.desired().attempts(0).dispatch().files(0).sha256(), io::Sha256Hex(kTwoRows));
  context.TryCancel();
  (void)stream->Finish();
}

// A worker without GPU, registered and welcomed.
class SessionTest : public ServicesTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::ServerMessage>;

  std::unique_ptr<Stream> Dial(grpc::ClientContext& context) {
    auto stream = workers_->Session(&context);
    v1::WorkerMessage hello;
    v1::Register* node = hello.mutable_register_();
    node->set_node("a");
    node->set_incarnation("life-1");
    node->set_protocol(kProtocol);
    v1::ServerMessage message;
    EXPECT_TRUE(stream->Write(hello) && stream->Read(&message));
    EXPECT_TRUE(message.has_welcome() && message.welcome().refused().empty());
    return stream;
  }
  // Of the next report that is answered.
  int64_t ReadAnswer(Stream& stream) {
    v1::ServerMessage message;
    while (stream.Read(&message)) {
      if (message.has_observed_answer()) return message.observed_answer().sequence();
    }
    return -1;
  }
};

// Those with an attempt or a model are stored, by other threads than the ones that are not.
TEST_F(SessionTest, ReportsAreAnsweredInTheirOrderWhetherTheyAreStoredOrNot) {
  constexpr int kReports = 60;
  grpc::ClientContext context;
  const auto stream = Dial(context);
  for (int i = 1; i <= kReports; ++i) {
    v1::WorkerMessage report;
    v1::Observed& observed = *report.mutable_observed();
    observed.set_sequence(i);
    if (i % 3 == 0) observed.add_attempts()->set_attempt_uid("unknown");
    if (i % 7 == 0) {
      v1::Model& model = *observed.add_models();
      model.set_id("tiny");
      model.set_path("/models/" + std::to_string(i));
    }
    ASSERT_TRUE(stream->Write(report));
  }
  for (int i = 1; i <= kReports; ++i) ASSERT_EQ(ReadAnswer(*stream), i);
  stream->WritesDone();
  EXPECT_EQ(ReadAnswer(*stream), -1);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(SessionTest, AStreamThatIsCancelledIsNoLongerConnected) {
  grpc::ClientContext context;
  const auto stream = Dial(context);
  EXPECT_EQ(server_->connected_workers(), 1);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const MonoTime patience = Clock::Real().Mono() + std::chrono::seconds(20);
  while (server_->connected_workers() > 0 && Clock::Real().Mono() < patience) {
    Clock::Real().Sleep(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(server_->connected_workers(), 0);
}

TEST_F(SessionTest, AnotherStreamOfTheWorkerEndsTheFirst) {
  grpc::ClientContext first, second;
  const auto old = Dial(first);
  const auto stream = Dial(second);
  EXPECT_EQ(ReadAnswer(*old), -1);
  EXPECT_EQ(old->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(server_->connected_workers(), 1);
  second.TryCancel();
  (void)stream->Finish();
}

TEST_F(SessionTest, ASecondRegisterAReportBeforeItAndWhatIsNoMessageEndTheStream) {
  v1::WorkerMessage again, early;
  again.mutable_register_()->set_node("a");
  early.mutable_observed()->set_sequence(1);
  {
    grpc::ClientContext context;
    const auto stream = Dial(context);
    ASSERT_TRUE(stream->Write(again));
    EXPECT_EQ(ReadAnswer(*stream), -1);
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  grpc::ClientContext context;
  const auto stream = workers_->Session(&context);
  ASSERT_TRUE(stream->Write(early));
  EXPECT_EQ(ReadAnswer(*stream), -1);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  // A tag of a kind that does not exist.
  const grpc::Slice bytes(std::string("\x0f\xff", 2));
  const grpc::Status status = CallRaw(server_->InProcessChannel(), "/sft.v1.WorkerService/Session",
                                      grpc::ByteBuffer(&bytes, 1));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
}

TEST_F(SessionTest, AServerThatStopsEndsTheStreams) {
  grpc::ClientContext context;
  const auto stream = Dial(context);
  server_.reset();
  EXPECT_EQ(ReadAnswer(*stream), -1);
  EXPECT_FALSE(stream->Finish().ok());
}

TEST_F(ServicesTest, ItsHealthIsToldUntilItStops) {
  const auto health = grpc::health::v1::Health::NewStub(rpc::MakeChannel(server_->address()));
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  for (const char* service : {"", "sft.v1.JobService", "sft.v1.StorageService"}) {
    grpc::ClientContext context;
    request.set_service(service);
    ASSERT_TRUE(health->Check(&context, request, &response).ok()) << service;
    EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING) << service;
  }
  request.set_service("sft.v1.Job");
  grpc::ClientContext second, third, fourth;
  EXPECT_EQ(health->Check(&second, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  const auto unknown = health->Watch(&third, request);
  ASSERT_TRUE(unknown->Read(&response));
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVICE_UNKNOWN);
  third.TryCancel();
  (void)unknown->Finish();
  request.clear_service();
  const auto watch = health->Watch(&fourth, request);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  server_.reset();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
}

TEST_F(ServicesTest, MoreWatchesOfTheHealthThanTheLimitAreRefusedUntilOneEnds) {
  using Watch = grpc::ClientReader<grpc::health::v1::HealthCheckResponse>;
  const auto health = grpc::health::v1::Health::NewStub(rpc::MakeChannel(server_->address()));
  grpc::health::v1::HealthCheckResponse response;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<Watch>> watches;
  const auto watch = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    watches.push_back(health->Watch(contexts.back().get(), {}));
    return watches.back()->Read(&response);
  };
  for (int i = 0; i < HealthService::kMaxWatches; ++i) ASSERT_TRUE(watch());
  EXPECT_FALSE(watch());
  EXPECT_EQ(watches.back()->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  contexts.front()->TryCancel();
  const MonoTime patience = Clock::Real().Mono() + std::chrono::seconds(20);
  bool again = false;
  while (!(again = watch()) && Clock::Real().Mono() < patience) {
    Clock::Real().Sleep(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(again) << "the place of the one that has ended is free";
  for (const auto& context : contexts) context->TryCancel();
}

TEST_F(ServicesTest, ReflectionHoldsFewStreams) {
  grpc::GenericStub stub(rpc::MakeChannel(server_->address()));
  grpc::CompletionQueue queue;
  const int count = Gate::kMaxStreamsWithoutRule + 1;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls;
  std::vector<grpc::Status> ends(count);
  for (int i = 0; i < count; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    calls.push_back(stub.PrepareCall(contexts.back().get(),
                                     "/grpc.reflection.v1alpha.ServerReflection/"
                                     "ServerReflectionInfo",
                                     &queue));
    calls.back()->StartCall(nullptr);
    calls.back()->Finish(&ends[i], &ends[i]);
  }
  // None of them says anything; one ends all the same.
  void* tag = nullptr;
  bool ok = false;
  do {
    ASSERT_TRUE(queue.Next(&tag, &ok));
  } while (tag == nullptr);
  EXPECT_EQ(static_cast<grpc::Status*>(tag)->error_code(), grpc::StatusCode::CANCELLED);
  for (const auto& context : contexts) context->TryCancel();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

TEST_F(ServicesTest, AnUploadThatSendsNothingIsEndedAndGoesOnWhereItStopped) {
  const auto data = v1::DataService::NewStub(rpc::MakeChannel(server_->address()));
  const std::string content = kTwoRows;
  grpc::ClientContext context;
  v1::UploadBlobResponse uploaded;
  const auto writer = data->UploadBlob(&context, &uploaded);
  v1::UploadBlobRequest message;
  message.set_sha256(io::Sha256Hex(content));
  message.set_size(static_cast<int64_t>(content.size()));
  message.set_purpose(v1::UploadBlobRequest::DATASET);
  message.set_data(content.substr(0, 5));
  ASSERT_TRUE(writer->Write(message));
  const grpc::Status ended = writer->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(ended.error_message().find("nothing came for 2 s"), std::string::npos)
      << ended.error_message();
  grpc::ClientContext second;
  const auto rest = data->UploadBlob(&second, &uploaded);
  message.set_offset(5);
  message.set_data(content.substr(5));
  rest->Write(message);
  rest->WritesDone();
  const grpc::Status status = rest->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(uploaded.rows(), 2);
}

TEST_F(ServicesTest, ARefusedWorkerIsToldWhyBeforeItsStreamEnds) {
  grpc::ClientContext context;
  const auto stream = workers_->Session(&context);
  v1::WorkerMessage hello;
  hello.mutable_register_()->set_node("a");
  hello.mutable_register_()->set_protocol(kProtocol + 1);
  ASSERT_TRUE(stream->Write(hello));
  v1::ServerMessage message;
  ASSERT_TRUE(stream->Read(&message));
  EXPECT_NE(message.welcome().refused().find("upgrade the server first"), std::string::npos);
  EXPECT_FALSE(stream->Read(&message));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServicesTest, ABlobIsDownloadedFromAnOffset) {
  v1::UploadBlobResponse uploaded;
  ASSERT_TRUE(Upload(kTwoRows, &uploaded).ok());
  grpc::ClientContext context;
  v1::DownloadBlobRequest request;
  request.set_sha256(io::Sha256Hex(kTwoRows));
  request.set_offset(5);
  const auto reader = data_->DownloadBlob(&context, request);
  v1::DownloadChunk chunk;
  std::string bytes;
  while (reader->Read(&chunk)) bytes += chunk.data();
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(bytes, std::string(kTwoRows).substr(5));
}

TEST_F(ServicesTest, WhatDoesNotExistIsNotFound) {
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_name("job-none");
  v1::Job job;
  EXPECT_EQ(jobs_->GetJob(&context, request, &job).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServicesTest, ASecondServerOfTheDataFolderIsRefused) {
  Server::Settings settings;
  settings.data_dir = dir_;
  settings.listen = {"127.0.0.1", 0};
  EXPECT_TRUE(absl::IsFailedPrecondition(Server::Start(settings, Clock::Real()).status()));
}

TEST(ListenTest, AnAddressThatIsNotLoopbackIsRefused) {
  const std::string dir = io::MakeTempDir("listen-test").value();
  Server::Settings settings;
  settings.data_dir = dir;
  settings.listen = {"0.0.0.0", 0};
  const absl::Status status = Server::Start(settings, Clock::Real()).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_NE(Message(status).find("sft-server init"), std::string_view::npos) << status;
  (void)io::RemoveAll(dir);
}

TEST_F(ServicesTest, APortInUseIsSaid) {
  const std::string dir = io::MakeTempDir("port-test").value();
  Server::Settings settings;
  settings.data_dir = dir;
  settings.listen = rpc::ParseEndpoint(server_->address()).value();
  const absl::Status status = Server::Start(settings, Clock::Real()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(Message(status).find("port is in use"), std::string_view::npos) << status;
  (void)io::RemoveAll(dir);
}

}  // namespace
}  // namespace sft::server
