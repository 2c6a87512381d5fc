#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/gangs/gang_life.h"
#include "server/scheduling/live_jobs.h"
#include "server/store/budgets.h"

// Budgets of projects: what happens when one is nearly, and when it is used up.

namespace sft::server {

// Why no job of the project starts, for people; the same until the cause changes. Only of a budget
// that is used up.
std::string BudgetReason(const store::SpentBudget& spent, const std::string& currency);

// True where somebody has to be told of the budget.
bool HasNews(const store::SpentBudget& spent);
// Tells of what the budget has reached, once in its period: in the feed, and by webhooks. Inside a
// transaction of the store.
absl::Status TellBudget(Database& db, const std::string& project, int64_t now_us);

// Whether the job has to stop because of the budget.
bool EndsByBudget(const LiveJob& live, const std::vector<store::SpentBudget>& budgets);
// Has it write a checkpoint and wait, where the budget still says so. Inside a transaction of the
// store.
absl::Status StopForBudget(Database& db, const LiveJob& live, int64_t now_us, ChangedJobs& changed);

}  // namespace sft::server
