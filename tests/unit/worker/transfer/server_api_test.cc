#include "worker/transfer/server_api.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server_options.h"
#include "sft/v1/data_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"

namespace sft::worker {
namespace {

// A service on a port of this machine, and the worker's side of it.
struct Served {
  explicit Served(grpc::Service& service) {
    grpc::ServerBuilder builder;
    rpc::SetServerOptions(builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    if (server == nullptr) throw std::runtime_error("the server did not start");
    api = MakeServerApi(
        [channel = rpc::MakeChannel("127.0.0.1:" + std::to_string(port))] { return channel; },
        "life-1");
  }
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<ServerApi> api;
};

// Accepts the request for a blob and sends nothing.
class SilentServer : public v1::DataService::Service {
 public:
  grpc::Status DownloadBlob(grpc::ServerContext* context, const v1::DownloadBlobRequest*,
                            grpc::ServerWriter<v1::DownloadChunk>*) override {
    asked = true;
    while (!context->IsCancelled()) Clock::Real().Sleep(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  }
  std::atomic<bool> asked = false;
};

TEST(ServerApiTest, AStopEndsAStalledDownload) {
  SilentServer service;
  const Served served(service);
  const absl::Status status = served.api->Download(
      "hash", 0, [](std::string_view) { return absl::OkStatus(); },
      [&] { return service.asked.load(); });
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  served.server->Shutdown();
}

// Keeps the deadline of a call, and what it sends.
class LineServer : public v1::WorkerService::Service {
 public:
  grpc::Status SendFile(grpc::ServerContext* context,
                        grpc::ServerReader<v1::SendFileRequest>* reader,
                        v1::SendFileResponse*) override {
    deadline = context->deadline();
    v1::SendFileRequest chunk;
    while (reader->Read(&chunk)) text += chunk.data();
    return grpc::Status::OK;
  }
  std::chrono::system_clock::time_point deadline{};
  std::string text;
};

TEST(ServerApiTest, AnAnswerMayTakeAsLongAsItTakes) {
  LineServer service;
  const Served served(service);
  std::vector<std::string> lines = {"", "two\n", "one\n"};
  EXPECT_TRUE(served.api
                  ->SendLines("request",
                              [&]() -> absl::StatusOr<std::string> {
                                std::string line = lines.back();
                                lines.pop_back();
                                return line;
                              })
                  .ok());
  served.server->Shutdown();
  EXPECT_EQ(service.text, "one\ntwo\n");
  EXPECT_EQ(service.deadline, std::chrono::system_clock::time_point::max());
}

}  // namespace
}  // namespace sft::worker
