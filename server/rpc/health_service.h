#pragma once

#include "common/base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/door/methods.h"

namespace sft::server {

// grpc.health.v1.Health, with plain calls (grpc_server.cc says why): all services serve until Stop.
// Who may ask is decided before (MakeAuthenticator).
class HealthService final : public grpc::health::v1::Health::Service {
 public:
  // Borrowed.
  explicit HealthService(const Methods& methods) : methods_(methods) {}

  // Watches at once: each holds a thread of the server, and none of them is admitted by a rule.
  static constexpr int kMaxWatches = 32;

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
  grpc::Status Follow(grpc::ServerContext& context, const std::string& service,
                      grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>& writer)
      SFT_EXCLUDES(mutex_);

  const Methods& methods_;
  Mutex mutex_;
  CondVar changed_;
  int watches_ SFT_GUARDED_BY(mutex_) = 0;
  bool stopped_ SFT_GUARDED_BY(mutex_) = false;
};

}  // namespace sft::server
