#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/endpoint.h"
#include "common/tls/certificate.h"
#include "server/rpc/grpc_methods.h"
#include "server/rpc/health_service.h"
#include "server/rpc/listener.h"
#include "server/rpc/sessions.h"

namespace sft::server {

// The gRPC transport: serves the methods through the door, health and reflection. With TLS unless
// the gate is open, which only loopback may be.
class GrpcServer {
 public:
  // Threads that calls may hold at once: streams that follow, uploads, unary calls.
  static constexpr int kMaxThreads = 800;

  // Of connections, which cost a descriptor each.
  struct Connections {
    int most = 0;  // 0: ConnectionCap::Default()
    // Without a call, and until the client has said what it speaks.
    std::chrono::milliseconds idle = std::chrono::minutes(10);
    std::chrono::milliseconds handshake = std::chrono::seconds(20);
  };

  // Methods, sessions and door are borrowed and must outlive it; all methods are there by now.
  // `tls` is the server's key and its certificate, followed by the authority's; for a gate that is
  // not open. PERMISSION_DENIED for an address that is not loopback without TLS; UNAVAILABLE when
  // the port is taken.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const rpc::Endpoint& endpoint, const Methods& methods, Door& door, Sessions& sessions,
      Clock& clock, Nanos read_patience, const tls::Identity& tls, const Connections& connections);
  ~GrpcServer();

  // Refuses new calls, gives the running ones a moment, then cuts them off.
  void Stop();
  int port() const { return listener_->port(); }
  // A channel inside this process, for tests.
  std::shared_ptr<grpc::Channel> InProcessChannel();

 private:
  GrpcServer(const Methods& methods, Door& door, Sessions& sessions, Clock& clock,
             Nanos read_patience)
      : methods_(methods, door, clock, read_patience), health_(methods), sessions_(sessions) {}

  GrpcMethods methods_;
  HealthService health_;
  Sessions& sessions_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace sft::server
