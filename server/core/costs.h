#pragma once

#include <cstdint>
#include <optional>

#include "server/database/sqlite.h"
#include "server/state/prices.h"
#include "server/state/records.h"
#include "sft/v1/job.pb.h"

// What jobs cost, as it is shown. Absent where none of their slots has or had a price.

namespace sft::server {

// `with_lost`: also of work that was lost, for which all attempts are looked at.
absl::StatusOr<std::optional<v1::Cost>> CostOfJob(Database& db, const PriceList& prices,
                                                  const JobRecord& job, int64_t now_us,
                                                  bool with_lost);

// Of a run on as many slots of the type, from a time on, as long as is expected (0: not known).
std::optional<v1::Cost> PlannedCost(const PriceList& prices, const std::string& gpu_type, int slots,
                                    int64_t start_us, int64_t expected_us);

}  // namespace sft::server
