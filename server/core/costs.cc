#include "server/core/costs.h"

#include "server/store/prices.h"

namespace sft::server {

absl::StatusOr<std::optional<v1::Cost>> CostOfJob(Database& db, const PriceList& prices,
                                                  const JobRecord& job, int64_t now_us,
                                                  bool with_lost) {
  if (prices.empty()) return std::optional<v1::Cost>();
  SFT_ASSIGN_OR_RETURN(const Cost held, store::CostOfJob(db, prices, job.id, now_us));
  v1::Cost cost;
  cost.set_currency(prices.currency());
  cost.set_micros(held.micros());
  if (!IsTerminal(job.state)) {
    cost.set_micros_per_hour(prices.At(job.gpu_type, now_us) * job.gpus_per_node * job.nodes);
  }
  if (cost.micros() == 0 && cost.micros_per_hour() == 0) return std::optional<v1::Cost>();
  if (with_lost) {
    SFT_ASSIGN_OR_RETURN(const Cost lost, store::LostCostOfJob(db, prices, job.id));
    cost.set_lost_micros(lost.micros());
  }
  return std::optional<v1::Cost>(std::move(cost));
}

std::optional<v1::Cost> PlannedCost(const PriceList& prices, const std::string& gpu_type, int slots,
                                    int64_t start_us, int64_t expected_us) {
  Cost run;
  for (int i = 0; i < slots; ++i) run += prices.Of(gpu_type, start_us, start_us + expected_us);
  v1::Cost cost;
  cost.set_currency(prices.currency());
  cost.set_micros(run.micros());
  cost.set_micros_per_hour(prices.At(gpu_type, start_us) * slots);
  if (cost.micros() == 0 && cost.micros_per_hour() == 0) return std::nullopt;
  return cost;
}

}  // namespace sft::server
