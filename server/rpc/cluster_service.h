#pragma once

#include "server/core/disk_watch.h"
#include "server/core/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/cluster_service.grpc.pb.h"

namespace sft::server {

// ClusterService: what the fleet is made of. Rows of the database with what the live streams add.
class ClusterServiceImpl final : public v1::ClusterService::Service {
 public:
  // `disk` may be null: nothing is told of the server's own.
  ClusterServiceImpl(Store& store, WorkerRegistry& registry, bool dev, DiskWatch* disk = nullptr)
      : store_(store), registry_(registry), dev_(dev), disk_(disk) {}

  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::ServerInfo* response) override;
  grpc::Status ListNodes(grpc::ServerContext* context, const v1::ListNodesRequest* request,
                         v1::ListNodesResponse* response) override;
  grpc::Status ListVariants(grpc::ServerContext* context, const v1::ListVariantsRequest* request,
                            v1::ListVariantsResponse* response) override;
  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override;

 private:
  Store& store_;
  WorkerRegistry& registry_;
  const bool dev_;
  DiskWatch* const disk_;
};

}  // namespace sft::server
