// The other side of a version mismatch, for trouble_test.py; its version is 9.9.9:
//
//   serve PORT PROTOCOL      a server of PROTOCOL - 1 and PROTOCOL that refuses every worker
//   register PORT PROTOCOL   a worker that prints how the server answers its Register

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/worker_service.grpc.pb.h"

namespace sft {
namespace {

constexpr char kOtherVersion[] = "9.9.9";

class OtherCluster final : public v1::ClusterService::Service {
 public:
  explicit OtherCluster(int protocol) : protocol_(protocol) {}

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    response->set_version(kOtherVersion);
    response->set_protocol(protocol_);
    response->set_min_protocol(std::max(0, protocol_ - 1));
    return grpc::Status::OK;
  }

 private:
  const int protocol_;
};

class OtherWorkers final : public v1::WorkerService::Service {
 public:
  explicit OtherWorkers(int protocol) : protocol_(protocol) {}

  grpc::Status Session(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ServerMessage, v1::WorkerMessage>* stream) override {
    v1::WorkerMessage hello;
    if (!stream->Read(&hello)) return grpc::Status::CANCELLED;
    const v1::Register& worker = hello.register_();
    v1::ServerMessage answer;
    v1::Welcome& welcome = *answer.mutable_welcome();
    welcome.set_server_version(kOtherVersion);
    welcome.set_protocol(protocol_);
    welcome.set_refused(
        fmt::format("worker {} {} speaks protocol {}, this server {} serves {} to {}: upgrade "
                    "worker {}",
                    worker.node(), worker.version(), worker.protocol(), kOtherVersion,
                    protocol_ - 1, protocol_, worker.node()));
    stream->Write(answer);
    return grpc::Status::OK;
  }

 private:
  const int protocol_;
};

int Serve(const std::string& address, int protocol) {
  OtherCluster cluster(protocol);
  OtherWorkers workers(protocol);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&cluster);
  builder.RegisterService(&workers);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  fmt::print("listening\n");
  fflush(stdout);
  server->Wait();
  return 0;
}

int Register(const std::string& address, int protocol) {
  const auto stub =
      v1::WorkerService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Session(&context);
  v1::WorkerMessage hello;
  v1::Register& worker = *hello.mutable_register_();
  worker.set_node("stranger");
  worker.set_incarnation("1");
  worker.set_version(kOtherVersion);
  worker.set_protocol(protocol);
  v1::ServerMessage answer;
  const bool answered = stream->Write(hello) && stream->Read(&answer) && answer.has_welcome();
  if (answered) fmt::print("refused: {}\n", answer.welcome().refused());
  context.TryCancel();
  (void)stream->Finish();
  return answered ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string command = argv[1], address = fmt::format("127.0.0.1:{}", argv[2]);
  const int protocol = std::stoi(argv[3]);
  if (command == "serve") return Serve(address, protocol);
  if (command == "register") return Register(address, protocol);
  return 2;
}

}  // namespace
}  // namespace sft

int main(int argc, char** argv) { return sft::Main(argc, argv); }
