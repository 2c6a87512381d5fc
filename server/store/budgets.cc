#include "server/store/budgets.h"

#include <algorithm>
#include <map>

#include "server/store/jobs.h"
#include "server/store/prices.h"

namespace sft::server::store {
namespace {

#define SFT_BUDGET_COLUMNS                                                             \
  "project, amount_micros, period, warn_percent, on_reached, begin_us, freed_micros, " \
  "freed_rest, warned, reached"

BudgetRecord ReadBudget(const Statement& row) {
  BudgetRecord budget;
  budget.project = row.Text(0);
  budget.amount_micros = row.Int(1);
  budget.period = static_cast<BudgetRecord::Period>(row.Int(2));
  budget.warn_percent = static_cast<int>(row.Int(3));
  budget.on_reached = static_cast<BudgetRecord::Action>(row.Int(4));
  budget.begin_us = row.Int(5);
  budget.freed = Cost::FromParts(row.Int(6), row.Int(7));
  budget.warned = row.Bool(8);
  budget.reached = row.Bool(9);
  return budget;
}

// Of one project or, with an empty name, of all.
absl::StatusOr<std::vector<BudgetRecord>> ReadBudgets(Database& db, const std::string& project) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_BUDGET_COLUMNS " FROM budgets WHERE ?1 = '' OR "
                                  "project = ?1 ORDER BY project"));
  list.Bind(project);
  std::vector<BudgetRecord> budgets;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return budgets;
    budgets.push_back(ReadBudget(list));
  }
}

absl::StatusOr<std::vector<SpentBudget>> ReadSpent(Database& db, const std::string& project,
                                                   int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(std::vector<BudgetRecord> budgets, ReadBudgets(db, project));
  std::vector<SpentBudget> all;
  if (budgets.empty()) return all;
  std::map<std::string, size_t> places;
  for (BudgetRecord& budget : budgets) {
    MoveOn(budget, now_us);
    places[budget.project] = all.size();
    const Cost freed = budget.freed;
    all.push_back({std::move(budget), freed});
  }
  SFT_ASSIGN_OR_RETURN(const PriceList prices, ReadPrices(db));
  SFT_ASSIGN_OR_RETURN(
      Statement held,
      db.Prepare("SELECT j.project, j.gpu_type, a.created_us, CASE n.removed WHEN 1 THEN "
                 "n.last_seen_us ELSE ?1 END FROM allocations a JOIN jobs j ON j.id = a.job_id "
                 "JOIN nodes n ON n.name = a.node WHERE a.freed_us IS NULL AND (?2 = '' OR "
                 "j.project = ?2)"));
  held.Bind(now_us).Bind(project);
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, held.Step());
    if (!row) return all;
    const auto found = places.find(held.Text(0));
    if (found == places.end()) continue;
    SpentBudget& of = all[found->second];
    of.spent += prices.Of(held.Text(1), std::max(held.Int(2), of.budget.begin_us), held.Int(3));
  }
}

}  // namespace

absl::StatusOr<std::optional<BudgetRecord>> FindBudget(Database& db, const std::string& project) {
  SFT_ASSIGN_OR_RETURN(std::vector<BudgetRecord> budgets, ReadBudgets(db, project));
  if (budgets.empty()) return std::optional<BudgetRecord>();
  return std::optional<BudgetRecord>(std::move(budgets.front()));
}

absl::Status PutBudget(Database& db, const BudgetRecord& budget) {
  SFT_ASSIGN_OR_RETURN(Statement put,
                       db.Prepare("INSERT OR REPLACE INTO budgets (" SFT_BUDGET_COLUMNS
                                  ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  put.Bind(budget.project).Bind(budget.amount_micros).Bind(static_cast<int>(budget.period));
  put.Bind(budget.warn_percent).Bind(static_cast<int>(budget.on_reached)).Bind(budget.begin_us);
  put.Bind(budget.freed.whole()).Bind(budget.freed.rest());
  return put.Bind(budget.warned).Bind(budget.reached).Run();
}

absl::Status DeleteBudget(Database& db, const std::string& project) {
  SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM budgets WHERE project = ?"));
  return remove.Bind(project).Run();
}

absl::StatusOr<std::vector<SpentBudget>> AllSpent(Database& db, int64_t now_us) {
  return ReadSpent(db, "", now_us);
}

absl::StatusOr<std::optional<SpentBudget>> SpentOf(Database& db, const std::string& project,
                                                   int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(std::vector<SpentBudget> all, ReadSpent(db, project, now_us));
  if (all.empty()) return std::optional<SpentBudget>();
  return std::optional<SpentBudget>(std::move(all.front()));
}

absl::Status ChargeBudget(Database& db, const std::string& project, const std::string& job_id,
                          const std::vector<int64_t>& begins_us, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(std::optional<BudgetRecord> budget, FindBudget(db, project));
  if (!budget.has_value()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const PriceList prices, ReadPrices(db));
  SFT_ASSIGN_OR_RETURN(const JobRecord job, GetJob(db, job_id));
  MoveOn(*budget, now_us);
  for (const int64_t begin_us : begins_us) {
    budget->freed += prices.Of(job.gpu_type, std::max(begin_us, budget->begin_us), now_us);
  }
  return PutBudget(db, *budget);
}

absl::Status Recount(Database& db, const PriceList& prices, BudgetRecord& budget) {
  budget.freed = Cost();
  SFT_ASSIGN_OR_RETURN(
      Statement freed,
      db.Prepare("SELECT j.gpu_type, a.created_us, a.freed_us FROM allocations a JOIN jobs j ON "
                 "j.id = a.job_id WHERE a.freed_us > ? AND j.project = ?"));
  freed.Bind(budget.begin_us).Bind(budget.project);
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, freed.Step());
    if (!row) return absl::OkStatus();
    budget.freed += prices.Of(freed.Text(0), std::max(freed.Int(1), budget.begin_us), freed.Int(2));
  }
}

}  // namespace sft::server::store
