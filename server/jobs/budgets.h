#pragma once

#include <cstdint>
#include <string>

#include "server/store/budgets.h"
#include "sft/v1/scheduling_service.pb.h"

// Budgets of projects, as operators set them and members see them.

namespace sft::server {

// A project's budget costs at most so much.
inline constexpr int64_t kMostBudgetMicros = 1'000'000'000'000'000'000;

// Changes what SetProjectRequest.budget gives. INVALID_ARGUMENT for what cannot be,
// FAILED_PRECONDITION while there are no prices. Inside a transaction of the store.
absl::Status ChangeBudget(Database& db, const std::string& project, const v1::Budget& asked,
                          int64_t now_us);

v1::Budget ToProto(const store::SpentBudget& spent, const std::string& currency);

}  // namespace sft::server
