#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/prices.h"

// Rows of prices, and what jobs cost by them. What a slot costs follows from when it was held
// (allocations), so nothing has to be counted for it. As jobs.h.

namespace sft::server::store {

inline constexpr int kMaxPrices = 1000;

// By type, oldest first.
absl::StatusOr<std::vector<PriceRecord>> AllPrices(Database& db);
absl::StatusOr<PriceList> ReadPrices(Database& db);
// Takes the place of one of the same type and time. RESOURCE_EXHAUSTED beyond kMaxPrices.
absl::Status PutPrice(Database& db, const PriceRecord& price);
absl::Status DeletePrice(Database& db, const std::string& gpu_type, int64_t start_us);

// Of all slots that the job has held.
absl::StatusOr<Cost> CostOfJob(Database& db, const PriceList& prices, const std::string& job_id,
                               int64_t now_us);
// Of attempts that the job went on from, from their last checkpoint on: that work was lost.
absl::StatusOr<Cost> LostCostOfJob(Database& db, const PriceList& prices,
                                   const std::string& job_id);

}  // namespace sft::server::store
