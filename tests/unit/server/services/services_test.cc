#include <grpcpp/generic/generic_stub.h>

#include "common/base/version.h"
#include "common/rpc/status.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "sft/v1/scheduling_service.grpc.pb.h"
#include "tests/unit/server/services/services_fixture.h"

namespace sft::server {
namespace {

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
  // The place of the one that has ended becomes free.
  while (!watch()) Clock::Real().Sleep(std::chrono::milliseconds(100));
  for (const auto& context : contexts) context->TryCancel();
}

TEST_F(ServicesTest, ReflectionHoldsFewStreams) {
  grpc::GenericStub stub(rpc::MakeChannel(server_->address()));
  grpc::CompletionQueue queue;
  const int count = Gate::kMaxStreamsOfLibrary + 1;
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
  message.set_offset(5);
  message.set_data(content.substr(5));
  grpc::Status status;
  do {  // the first call's part is free when its handler has returned, a moment after its answer
    grpc::ClientContext second;
    const auto rest = data->UploadBlob(&second, &uploaded);
    rest->Write(message);
    rest->WritesDone();
    status = rest->Finish();
  } while (status.error_message().find("being uploaded by another call") != std::string::npos);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(uploaded.rows(), 2);
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
  EXPECT_NE(Message(status).find("Address already in use"), std::string_view::npos) << status;
  (void)io::RemoveAll(dir);
}

// Whoever opens a stream and asks nothing holds no thread: the others are served.
TEST_F(ServicesTest, CallsWithoutARequestTakeNoThreads) {
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(server_->InProcessChannel());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::GenericClientAsyncReaderWriter>> calls;
  for (int i = 0; i < GrpcServer::kMaxThreads + 20; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    calls.push_back(stub.PrepareCall(contexts.back().get(), "/sft.v1.JobService/WatchJob", &queue));
    calls.back()->StartCall(&contexts);
  }
  void* tag = nullptr;
  bool ok = false;
  for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
  grpc::ClientContext context;
  rpc::SetDeadline(context, std::chrono::minutes(2));
  v1::ServerInfo info;
  const grpc::Status served = cluster_->GetServerInfo(&context, {}, &info);
  EXPECT_TRUE(served.ok()) << served.error_message();
  for (const auto& each : contexts) each->TryCancel();
  grpc::Status ended;
  for (const auto& call : calls) call->Finish(&ended, &contexts);
  for (size_t i = 0; i < calls.size(); ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
  queue.Shutdown();
  EXPECT_FALSE(queue.Next(&tag, &ok));
}

}  // namespace
}  // namespace sft::server
