#pragma once

#include <functional>

#include "server/core/disk_watch.h"
#include "server/core/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/operator_service.grpc.pb.h"

namespace sft::server {

// OperatorService: what an operator does to nodes, and what the fleet was used for.
class OperatorServiceImpl final : public v1::OperatorService::Service {
 public:
  // `wake` asks for a reconcile tick soon. All but it borrowed.
  OperatorServiceImpl(Store& store, Clock& clock, WorkerRegistry& registry, DiskWatch& disk,
                      std::function<void()> wake)
      : store_(store), clock_(clock), registry_(registry), disk_(disk), wake_(std::move(wake)) {}

  grpc::Status HoldNode(grpc::ServerContext* context, const v1::HoldNodeRequest* request,
                        v1::Node* response) override;
  grpc::Status ReleaseNode(grpc::ServerContext* context, const v1::ReleaseNodeRequest* request,
                           v1::Node* response) override;
  grpc::Status RemoveNode(grpc::ServerContext* context, const v1::RemoveNodeRequest* request,
                          v1::RemoveNodeResponse* response) override;
  grpc::Status GetStats(grpc::ServerContext* context, const v1::GetStatsRequest* request,
                        v1::Stats* response) override;

 private:
  absl::Status Show(Database& db, const std::string& node, v1::Node& response);

  Store& store_;
  Clock& clock_;
  WorkerRegistry& registry_;
  DiskWatch& disk_;
  const std::function<void()> wake_;
};

}  // namespace sft::server
