#pragma once

#include "common/base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace sft::server {

// grpc.health.v1.Health, with plain calls (grpc_server.cc says why): all services serve until Stop.
// Who may ask is decided before (MakeAuthenticator).
class HealthService final : public grpc::health::v1::Health::Service {
 public:
  grpc::Status Check(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override;
  grpc::Status Watch(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>* writer) override;

  // From now on nothing serves; ends the watches.
  void Stop() SFT_EXCLUDES(mutex_);

 private:
  grpc::health::v1::HealthCheckResponse StatusOf(const std::string& service) SFT_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
