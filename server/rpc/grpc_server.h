#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/endpoint.h"
#include "common/tls/certificate.h"
#include "server/calls/call_queue.h"
#include "server/calls/followers.h"
#include "server/calls/grpc_methods.h"
#include "server/calls/sessions.h"
#include "server/rpc/health_service.h"
#include "server/rpc/listener.h"

namespace sft::server {

// The gRPC transport: serves the methods through the door, health and reflection. With TLS unless
// the gate is open, which only loopback may be.
class GrpcServer {
 public:
  // Threads that calls may hold at once: uploads, downloads, unary calls.
  static constexpr int kMaxThreads = 1400;

  // Of connections, which cost a descriptor each.
  struct Connections {
    int most = 0;  // 0: ConnectionCap::Default()
    // Without a call, and until the client has said what it speaks.
    std::chrono::milliseconds idle = std::chrono::minutes(10);
    std::chrono::milliseconds handshake = std::chrono::seconds(20);
  };

  // What it serves. Borrowed, and outlives it; all methods are there by now.
  struct Served {
    const Methods& methods;
    Door& door;
    Sessions& sessions;
    ChangeHub& hub;
    Clock& clock;
    Nanos read_patience = GrpcMethods::kReadPatience;
  };

  // `tls` is the server's key and its certificate, followed by the authority's; for a gate that is
  // not open. PERMISSION_DENIED for an address that is not loopback without TLS; UNAVAILABLE when
  // the port is taken.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const rpc::Endpoint& endpoint,
                                                           const Served& served,
                                                           const tls::Identity& tls,
                                                           const Connections& connections);
  ~GrpcServer();

  // Refuses new calls, gives the running ones a moment, then cuts them off.
  void Stop();
  int port() const { return listener_->port(); }
  // A channel inside this process, for tests.
  std::shared_ptr<grpc::Channel> InProcessChannel();

 private:
  explicit GrpcServer(const Served& served)
      : methods_(served.methods, served.door, served.clock, served.read_patience),
        health_(served.methods),
        sessions_(served.sessions),
        followers_(methods_, served.door, served.hub, queue_, served.clock) {}

  GrpcMethods methods_;
  HealthService health_;
  CallQueue queue_;
  Sessions& sessions_;
  Followers followers_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace sft::server
