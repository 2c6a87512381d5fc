#include "server/rpc/grpc_server.h"

#include <absl/synchronization/mutex.h>
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include "common/rpc/server_options.h"
#include "server/rpc/authenticator.h"
#include "server/rpc/library_calls.h"

namespace sft::server {
namespace {

// The library's own messages: what matters of them comes back as a status.
void TakeGrpcLog(gpr_log_func_args* message) { spdlog::debug("grpc: {}", message->message); }

std::shared_ptr<grpc::ServerCredentials> ServerCredentials(Gate& gate, const Methods& methods,
                                                           const tls::Identity& tls) {
  if (gate.open()) return grpc::InsecureServerCredentials();
  // A client's certificate is checked call by call (Access): so it can be told what is wrong with
  // it, and one that was revoked is refused on a connection that stands. TLS itself proves that the
  // client has the key.
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  options.pem_key_cert_pairs.push_back({tls.key_pem, tls.certificate_pem});
  const auto credentials = grpc::SslServerCredentials(options);
  credentials->SetAuthMetadataProcessor(MakeAuthenticator(gate, methods));
  return credentials;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const rpc::Endpoint& endpoint,
                                                              const Served& served,
                                                              const tls::Identity& tls,
                                                              const Connections& connections) {
  Gate& gate = served.door.gate();
  if (gate.open() && !rpc::IsLoopback(endpoint.host)) {
    return PermissionDenied(endpoint.ToString() +
                            " is not loopback, and is not served without TLS");
  }
  auto listener = Listener::Open(
      endpoint,
      {connections.most > 0 ? connections.most : ConnectionCap::Default(), Clock::Real()});
  if (!listener.ok()) {
    return Unavailable(
        fmt::format("cannot listen on {}: {}; stop the other server, or give another --listen "
                    "HOST:PORT",
                    endpoint.ToString(), Message(listener.status())));
  }
  gpr_set_log_function(TakeGrpcLog);
  // The distribution's build of the library beneath gRPC looks for deadlocks at each of its locks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  rpc::SetServerOptions(builder);
  const auto millis = [](std::chrono::milliseconds time) { return static_cast<int>(time.count()); };
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, millis(connections.idle));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, millis(connections.handshake));
  // By default a thread ends when two others wait for calls, and the next burst makes new ones.
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 2);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 16);
  builder.SetResourceQuota(grpc::ResourceQuota("sft-server").SetMaxThreads(kMaxThreads));
  builder.experimental().SetInterceptorCreators(WatchLibraryCalls(gate));
  std::unique_ptr<GrpcServer> made(new GrpcServer(served));
  builder.RegisterService(&made->methods_);
  builder.RegisterService(&made->health_);
  // Where one is polled, the library lets no other thread look at sockets, but those of methods
  // with callbacks: so there are none, not even the library's own service for health.
  std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  made->listener_ = *std::move(listener);
  made->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      ServerCredentials(gate, served.methods, tls));
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr) {
    queue->Shutdown();
    return Internal("the gRPC server cannot be built");
  }
  made->queue_.Start(std::move(queue));
  served.sessions.Start(made->methods_, served.door, made->queue_);
  made->followers_.Start();
  made->listener_->Start([acceptor = made->acceptor_.get()](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  });
  return made;
}

GrpcServer::~GrpcServer() { Stop(); }

void GrpcServer::Stop() {
  if (server_ == nullptr) return;
  listener_->Stop();
  health_.Stop();
  server_->Shutdown(gpr_time_from_seconds(1, GPR_TIMESPAN));
  server_->Wait();
  queue_.Stop();
  sessions_.Stop();
  followers_.Stop();
  server_.reset();
}

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  return server_->InProcessChannel({});
}

}  // namespace sft::server
