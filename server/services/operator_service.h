#pragma once

#include <functional>

#include "server/core/disk_watch.h"
#include "server/door/methods.h"
#include "server/fleet/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/operator_service.pb.h"

namespace sft::server {

// OperatorService: what an operator does to nodes, and what the fleet was used for.
class OperatorService final {
 public:
  // `wake` asks for a reconcile tick soon. All but it borrowed.
  OperatorService(Store& store, Clock& clock, WorkerRegistry& registry, DiskWatch& disk,
                  std::function<void()> wake)
      : store_(store), clock_(clock), registry_(registry), disk_(disk), wake_(std::move(wake)) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::Node> HoldNode(CallContext& call, const v1::HoldNodeRequest& request);
  absl::StatusOr<v1::Node> ReleaseNode(CallContext& call, const v1::ReleaseNodeRequest& request);
  absl::StatusOr<v1::RemoveNodeResponse> RemoveNode(CallContext& call,
                                                    const v1::RemoveNodeRequest& request);
  absl::StatusOr<v1::Stats> GetStats(CallContext& call, const v1::GetStatsRequest& request);

 private:
  absl::StatusOr<v1::Node> Show(Database& db, const std::string& node);

  Store& store_;
  Clock& clock_;
  WorkerRegistry& registry_;
  DiskWatch& disk_;
  const std::function<void()> wake_;
};

}  // namespace sft::server
