#pragma once

#include <functional>

#include "server/core/disk_watch.h"
#include "server/door/methods.h"
#include "server/fleet/worker_registry.h"
#include "server/jobs/prices.h"
#include "server/store/store.h"
#include "sft/v1/operator_service.pb.h"

namespace sft::server {

// OperatorService: what an operator does to nodes, what the fleet was used for, and what it costs.
class OperatorService final {
 public:
  // `wake` asks for a reconcile tick soon. All but it borrowed.
  OperatorService(Store& store, Clock& clock, WorkerRegistry& registry, DiskWatch& disk,
                  std::function<void()> wake)
      : store_(store),
        clock_(clock),
        registry_(registry),
        disk_(disk),
        prices_(store, clock),
        wake_(std::move(wake)) {}

  // Its methods with their rules. It must outlive them.
  void AddTo(Methods& methods);

  absl::StatusOr<v1::Node> HoldNode(CallContext& call, const v1::HoldNodeRequest& request);
  absl::StatusOr<v1::Node> ReleaseNode(CallContext& call, const v1::ReleaseNodeRequest& request);
  absl::StatusOr<v1::RemoveNodeResponse> RemoveNode(CallContext& call,
                                                    const v1::RemoveNodeRequest& request);
  absl::StatusOr<v1::Stats> GetStats(CallContext& call, const v1::GetStatsRequest& request);
  absl::StatusOr<v1::ListPricesResponse> ListPrices(CallContext& call,
                                                    const v1::ListPricesRequest& request);
  absl::StatusOr<v1::Price> SetPrice(CallContext& call, const v1::SetPriceRequest& request);
  absl::StatusOr<v1::RemovePriceResponse> RemovePrice(CallContext& call,
                                                      const v1::RemovePriceRequest& request);

 private:
  absl::StatusOr<v1::Node> Show(Database& db, const std::string& node);

  Store& store_;
  Clock& clock_;
  WorkerRegistry& registry_;
  DiskWatch& disk_;
  Prices prices_;
  const std::function<void()> wake_;
};

}  // namespace sft::server
