#include "server/scheduling/budgets.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/money.h"
#include "server/store/feed.h"
#include "server/store/prices.h"
#include "server/store/webhook_events.h"

namespace sft::server {
namespace {

using store::SpentBudget;

// "the budget of project vision (1000.00 EUR a month)"
std::string Title(const BudgetRecord& budget, const std::string& currency) {
  return fmt::format("the budget of project {} ({}{})", budget.project,
                     MoneyText(budget.amount_micros, currency),
                     budget.period == BudgetRecord::Period::kMonth ? " a month" : "");
}

std::string NewsText(const SpentBudget& spent, const std::string& currency, bool reached) {
  const BudgetRecord& budget = spent.budget;
  if (!reached) {
    return fmt::format("{} of {}: {} percent are passed", MoneyText(spent.spent.micros(), currency),
                       Title(budget, currency), budget.warn_percent);
  }
  return fmt::format("{} is used up: no more of its jobs start{}", Title(budget, currency),
                     budget.on_reached == BudgetRecord::Action::kStop
                         ? ", and those that run stop after a checkpoint"
                         : "");
}

absl::Status Tell(Database& db, const SpentBudget& spent, const std::string& currency, bool reached,
                  int64_t now_us) {
  const std::string type = reached ? "budget.reached" : "budget.warned";
  store::FeedEvent event;
  event.time_us = now_us;
  event.project = spent.budget.project;
  event.subject = "projects/" + spent.budget.project;
  event.type = type;
  event.message = NewsText(spent, currency, reached);
  SFT_RETURN_IF_ERROR(store::FeedOther(db, event));
  return store::TellBudget(db, type, spent.budget, spent.spent.micros(), currency, now_us);
}

}  // namespace

std::string BudgetReason(const SpentBudget& spent, const std::string& currency) {
  const int64_t end_us = EndOf(spent.budget);
  return fmt::format(
      "{} is used up: an operator raises it (sftctl admin project set {} --budget ...){}",
      Title(spent.budget, currency), spent.budget.project,
      end_us == 0 ? ""
                  : fmt::format(", or it goes on with the next month, at {}",
                                FormatUtc(FromUnixMicros(end_us))));
}

bool HasNews(const SpentBudget& spent) {
  return (spent.warns() && !spent.budget.warned) || (spent.is_reached() && !spent.budget.reached);
}

absl::Status TellBudget(Database& db, const std::string& project, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(std::optional<SpentBudget> spent, store::SpentOf(db, project, now_us));
  if (!spent.has_value()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
  BudgetRecord& budget = spent->budget;
  if (spent->warns() && !budget.warned) {
    SFT_RETURN_IF_ERROR(Tell(db, *spent, prices.currency(), /*reached=*/false, now_us));
    budget.warned = true;
  }
  if (spent->is_reached() && !budget.reached) {
    SFT_RETURN_IF_ERROR(Tell(db, *spent, prices.currency(), /*reached=*/true, now_us));
    budget.reached = true;
  }
  return store::PutBudget(db, budget);
}

bool EndsByBudget(const LiveJob& live, const std::vector<SpentBudget>& budgets) {
  if (live.attempt.state >= AttemptState::kStopping || !live.attempt.stop_code.empty()) {
    return false;
  }
  return std::any_of(budgets.begin(), budgets.end(), [&](const SpentBudget& each) {
    return each.budget.project == live.job.project && each.is_reached() &&
           each.budget.on_reached == BudgetRecord::Action::kStop;
  });
}

absl::Status StopForBudget(Database& db, const LiveJob& live, int64_t now_us,
                           ChangedJobs& changed) {
  SFT_ASSIGN_OR_RETURN(const std::optional<SpentBudget> spent,
                       store::SpentOf(db, live.job.project, now_us));
  if (!spent.has_value() || !EndsByBudget(live, {*spent})) return absl::OkStatus();
  return StopAttempt(db, live.attempt.uid, kBudgetReached,
                     fmt::format("stopped: the budget of project {} is used up", live.job.project),
                     now_us, changed);
}

}  // namespace sft::server
