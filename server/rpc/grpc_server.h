#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "common/base/status.h"
#include "common/rpc/endpoint.h"

namespace sft::server {

// The gRPC server: services, health, reflection, the principal's interceptor. Loopback only.
class GrpcServer {
 public:
  // Threads that calls may hold at once: streams that follow, uploads, unary calls.
  static constexpr int kMaxThreads = 192;

  // The services are borrowed and must outlive it. PERMISSION_DENIED for an address that is not
  // loopback; UNAVAILABLE when the port is taken.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const rpc::Endpoint& endpoint, const std::vector<grpc::Service*>& services);
  ~GrpcServer();

  // Refuses new calls, gives the running ones a moment, then cuts them off.
  void Stop();
  int port() const { return port_; }
  // A channel inside this process, for tests.
  std::shared_ptr<grpc::Channel> InProcessChannel();

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, int port)
      : server_(std::move(server)), port_(port) {}
  std::unique_ptr<grpc::Server> server_;
  const int port_;
};

}  // namespace sft::server
