#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/rpc/channel.h"
#include "server/app/server.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"

namespace sft::server {

inline constexpr char kTwoRowJob[] = R"([job]
model = "/models/tiny"
data = "rows.jsonl"
[compute]
gpu_type = "CPU"
gpu_count = 1
nodes = 1
gpus_per_node = 1
)";
inline constexpr char kTwoRows[] = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";

// The whole server in this process, spoken to over a gRPC channel inside it.
class ServicesTest : public testing::Test {
 protected:
  // `http`: as Settings::http; not "off" with the web page.
  explicit ServicesTest(const std::string& http = "off")
      : dir_(io::MakeTempDir("services-test").value()) {
    settings_.data_dir = dir_;
    settings_.listen = {"127.0.0.1", 0};
    settings_.http = http;
    settings_.web.web = http != "off";
    settings_.read_patience = std::chrono::seconds(2);
    Start();
  }
  void Start() {
    auto server = Server::Start(settings_, Clock::Real());
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
  Server::Settings settings_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::DataService::Stub> data_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
};

}  // namespace sft::server
