#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/prices.h"

// Rows of budgets. What was spent is the cost of slots that were freed, which is counted in the
// transaction that frees them, and of those that are held now. As jobs.h.

namespace sft::server::store {

absl::StatusOr<std::optional<BudgetRecord>> FindBudget(Database& db, const std::string& project);
absl::Status PutBudget(Database& db, const BudgetRecord& budget);
absl::Status DeleteBudget(Database& db, const std::string& project);

// A budget, moved on to the period of now, and what was spent in it.
struct SpentBudget {
  BudgetRecord budget;
  Cost spent;

  bool warns() const { return spent.Reaches(budget.amount_micros, budget.warn_percent); }
  bool is_reached() const { return spent.Reaches(budget.amount_micros, 100); }
};
// All, by project.
absl::StatusOr<std::vector<SpentBudget>> AllSpent(Database& db, int64_t now_us);
absl::StatusOr<std::optional<SpentBudget>> SpentOf(Database& db, const std::string& project,
                                                   int64_t now_us);

// Slots of a job of the project are freed, which it has held since these times.
absl::Status ChargeBudget(Database& db, const std::string& project, const std::string& job_id,
                          const std::vector<int64_t>& begins_us, int64_t now_us);
// Counts anew what the project has spent on slots that were freed in the budget's period.
absl::Status Recount(Database& db, const PriceList& prices, BudgetRecord& budget);

}  // namespace sft::server::store
