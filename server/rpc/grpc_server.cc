#include "server/rpc/grpc_server.h"

#include <absl/synchronization/mutex.h>
#include <fmt/format.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include "common/rpc/server_options.h"
#include "server/rpc/principal.h"

namespace sft::server {
namespace {

// The library's own messages: what matters of them comes back as a status.
void TakeGrpcLog(gpr_log_func_args* message) { spdlog::debug("grpc: {}", message->message); }

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(Gate& gate, const tls::Identity& tls) {
  if (gate.open()) return grpc::InsecureServerCredentials();
  // A client's certificate is checked call by call (Access): so it can be told what is wrong with
  // it, and one that was revoked is refused on a connection that stands. TLS itself proves that the
  // client has the key.
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  options.pem_key_cert_pairs.push_back({tls.key_pem, tls.certificate_pem});
  const auto credentials = grpc::SslServerCredentials(options);
  credentials->SetAuthMetadataProcessor(MakeAuthenticator(gate));
  return credentials;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const rpc::Endpoint& endpoint, const std::vector<grpc::Service*>& services, Gate& gate,
    const tls::Identity& tls) {
  if (gate.open() && !rpc::IsLoopback(endpoint.host)) {
    return PermissionDenied(endpoint.ToString() +
                            " is not loopback, and is not served without TLS");
  }
  gpr_set_log_function(TakeGrpcLog);
  // The distribution's build of the library beneath gRPC looks for deadlocks at each of its locks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  rpc::SetServerOptions(builder);
  // By default a thread ends when two others wait for calls, and the next burst makes new ones.
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 2);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 16);
  builder.SetResourceQuota(grpc::ResourceQuota("sft-server").SetMaxThreads(kMaxThreads));
  builder.experimental().SetInterceptorCreators(PrincipalInterceptors(gate));
  for (grpc::Service* service : services) builder.RegisterService(service);
  int port = 0;
  builder.AddListeningPort(endpoint.ToString(), CredentialsOf(gate, tls), &port);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return Unavailable(
        fmt::format("cannot listen on {}: the port is in use or may not be opened; stop the other "
                    "server, or give "
                    "another --listen HOST:PORT",
                    endpoint.ToString()));
  }
  server->GetHealthCheckService()->SetServingStatus(true);
  for (const char* name :
       {"sft.v1.JobService", "sft.v1.WorkerService", "sft.v1.ClusterService", "sft.v1.DataService",
        "sft.v1.AdminService", "sft.v1.AuthService", "sft.v1.OperatorService",
        "sft.v1.SchedulingService", "sft.v1.StorageService"}) {
    server->GetHealthCheckService()->SetServingStatus(name, true);
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(server), port));
}

GrpcServer::~GrpcServer() { Stop(); }

void GrpcServer::Stop() {
  if (server_ == nullptr) return;
  server_->GetHealthCheckService()->SetServingStatus(false);
  pulse_.reset();
  server_->Shutdown(gpr_time_from_seconds(1, GPR_TIMESPAN));
  server_->Wait();
  server_.reset();
}

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  return server_->InProcessChannel({});
}

}  // namespace sft::server
