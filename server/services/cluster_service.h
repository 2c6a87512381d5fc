#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/blob/gpu_history.h"
#include "server/core/disk_watch.h"
#include "server/door/methods.h"
#include "server/fleet/hub_models.h"
#include "server/fleet/model_copies.h"
#include "server/fleet/model_facts.h"
#include "server/fleet/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/cluster_service.pb.h"

namespace sft::server {

// ClusterService: what the fleet is made of, rows of the database with what the live streams add,
// and what happens to it (event_feed.cc).
class ClusterService final {
 public:
  // `disk` may be null: nothing is told of the server's own.
  ClusterService(Store& store, WorkerRegistry& registry, bool dev, FleetCatalog& fleet,
                 HubModels& hub, ModelCopies& copies, GpuHistory& gpus, Clock& clock,
                 const Generation& generation, DiskWatch* disk = nullptr)
      : store_(store),
        registry_(registry),
        dev_(dev),
        hub_(hub),
        copies_(copies),

        gpus_(gpus),
        clock_(clock),
        generation_(generation),
        disk_(disk),
        models_(fleet) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::ServerInfo> GetServerInfo(CallContext& call,
                                               const v1::GetServerInfoRequest& request);
  absl::StatusOr<v1::ListNodesResponse> ListNodes(CallContext& call,
                                                  const v1::ListNodesRequest& request);
  absl::StatusOr<v1::NodeHistory> GetNodeHistory(CallContext& call,
                                                 const v1::GetNodeHistoryRequest& request);
  absl::StatusOr<v1::ListVariantsResponse> ListVariants(CallContext& call,
                                                        const v1::ListVariantsRequest& request);
  absl::StatusOr<v1::ListModelsResponse> ListModels(CallContext& call,
                                                    const v1::ListModelsRequest& request);
  absl::Status ReadTokenizer(CallContext& call, const v1::ReadTokenizerRequest& request,
                             Sink<v1::ReadTokenizerResponse>& sink);
  absl::StatusOr<v1::ListClusterEventsResponse> ListClusterEvents(
      CallContext& call, const v1::ListClusterEventsRequest& request);
  absl::StatusOr<std::unique_ptr<Follower>> WatchClusterEvents(
      CallContext& call, const v1::WatchClusterEventsRequest& request);
  absl::StatusOr<v1::PullModelResponse> PullModel(CallContext& call,
                                                  const v1::PullModelRequest& request);
  absl::StatusOr<v1::RemoveModelResponse> RemoveModel(CallContext& call,
                                                      const v1::RemoveModelRequest& request);

 private:
  // Nodes among `asked` (empty: all) that are connected and download models.
  absl::StatusOr<std::vector<std::string>> Downloaders(
      const google::protobuf::RepeatedPtrField<std::string>& asked);

  absl::Status Audited(CallContext& call);

  Store& store_;
  WorkerRegistry& registry_;
  const bool dev_;
  HubModels& hub_;
  ModelCopies& copies_;
  GpuHistory& gpus_;
  Clock& clock_;
  const Generation& generation_;
  DiskWatch* const disk_;
  ModelFacts models_;
};

}  // namespace sft::server
