#include "server/rpc/health_service.h"

#include <fmt/format.h>

#include <chrono>

#include "common/rpc/status.h"

namespace sft::server {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// How soon a watch sees that its caller has gone.
constexpr std::chrono::seconds kSeesGone{1};

}  // namespace

HealthCheckResponse HealthService::StatusOf(const std::string& service) {
  HealthCheckResponse response;
  const MutexLock lock(mutex_);
  // The server as a whole, or one of our services.
  constexpr std::string_view kPackage = "sft.v1.";
  const bool known = service.empty() || (service.starts_with(kPackage) &&
                                         methods_.HasService(service.substr(kPackage.size())));
  response.set_status(!known     ? HealthCheckResponse::SERVICE_UNKNOWN
                      : stopped_ ? HealthCheckResponse::NOT_SERVING
                                 : HealthCheckResponse::SERVING);
  return response;
}

grpc::Status HealthService::Check(grpc::ServerContext*, const HealthCheckRequest* request,
                                  HealthCheckResponse* response) {
  *response = StatusOf(request->service());
  if (response->status() != HealthCheckResponse::SERVICE_UNKNOWN) return grpc::Status::OK;
  return rpc::ToGrpc(NotFound(fmt::format("no service {}", request->service().substr(0, 80))));
}

grpc::Status HealthService::Watch(grpc::ServerContext* context, const HealthCheckRequest* request,
                                  grpc::ServerWriter<HealthCheckResponse>* writer) {
  {
    const MutexLock lock(mutex_);
    if (watches_ >= kMaxWatches) {
      return rpc::ToGrpc(ResourceExhausted(fmt::format(
          "{} watches of the health are open already: end one, or call Check", watches_)));
    }
    ++watches_;
  }
  const grpc::Status ended = Follow(*context, request->service(), *writer);
  const MutexLock lock(mutex_);
  --watches_;
  return ended;
}

grpc::Status HealthService::Follow(grpc::ServerContext& context, const std::string& service,
                                   grpc::ServerWriter<HealthCheckResponse>& writer) {
  bool stopped = false;
  while (writer.Write(StatusOf(service)) && !stopped) {
    const MutexLock lock(mutex_);
    while (!stopped_ && !context.IsCancelled()) changed_.WaitFor(mutex_, kSeesGone);
    if (!stopped_) break;
    stopped = true;
  }
  return stopped ? grpc::Status::OK : grpc::Status::CANCELLED;
}

void HealthService::Stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

}  // namespace sft::server
