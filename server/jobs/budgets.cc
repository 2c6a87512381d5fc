#include "server/jobs/budgets.h"

#include <fmt/format.h>

#include "common/base/money.h"
#include "server/core/convert.h"
#include "server/store/budgets.h"
#include "server/store/prices.h"

namespace sft::server {
namespace {

absl::Status TakeChanges(const v1::Budget& asked, BudgetRecord& budget) {
  if (asked.amount_micros() < 0 || asked.amount_micros() > kMostBudgetMicros) {
    return InvalidArgument(
        fmt::format("a budget is an amount up to {}", MoneyText(kMostBudgetMicros, "")));
  }
  if (asked.warn_percent() < 0 || asked.warn_percent() > 100) {
    return InvalidArgument("a budget warns at 1 to 100 percent");
  }
  if (asked.amount_micros() > 0) budget.amount_micros = asked.amount_micros();
  if (asked.warn_percent() > 0) budget.warn_percent = asked.warn_percent();
  if (asked.period() != v1::Budget::PERIOD_UNSPECIFIED) {
    budget.period = static_cast<BudgetRecord::Period>(asked.period());
  }
  if (asked.on_reached() != v1::Budget::ACTION_UNSPECIFIED) {
    budget.on_reached = static_cast<BudgetRecord::Action>(asked.on_reached());
  }
  return budget.amount_micros > 0
             ? absl::OkStatus()
             : InvalidArgument(
                   fmt::format("project {} has no budget yet: give its amount", budget.project));
}

}  // namespace

absl::Status ChangeBudget(Database& db, const std::string& project, const v1::Budget& asked,
                          int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
  if (prices.empty()) {
    return FailedPrecondition(
        "there are no prices, so nothing would count: set them first (`sftctl price set`)");
  }
  SFT_ASSIGN_OR_RETURN(const auto before, store::FindBudget(db, project));
  BudgetRecord budget = before.value_or(BudgetRecord());
  budget.project = project;
  SFT_RETURN_IF_ERROR(TakeChanges(asked, budget));
  if (!before.has_value() || before->period != budget.period) {
    budget.begin_us = budget.period == BudgetRecord::Period::kMonth ? MonthOf(now_us) : now_us;
    SFT_RETURN_IF_ERROR(store::Recount(db, prices, budget));
  }
  SFT_RETURN_IF_ERROR(store::PutBudget(db, budget));
  // What it has not reached any more is told once it does again.
  SFT_ASSIGN_OR_RETURN(std::optional<store::SpentBudget> spent,
                       store::SpentOf(db, project, now_us));
  spent->budget.warned = spent->budget.warned && spent->warns();
  spent->budget.reached = spent->budget.reached && spent->is_reached();
  return store::PutBudget(db, spent->budget);
}

v1::Budget ToProto(const store::SpentBudget& spent, const std::string& currency) {
  const BudgetRecord& budget = spent.budget;
  v1::Budget proto;
  proto.set_amount_micros(budget.amount_micros);
  proto.set_period(static_cast<v1::Budget::Period>(budget.period));
  proto.set_warn_percent(budget.warn_percent);
  proto.set_on_reached(static_cast<v1::Budget::Action>(budget.on_reached));
  proto.set_currency(currency);
  *proto.mutable_period_start() = ToTimestamp(budget.begin_us);
  if (const int64_t end_us = EndOf(budget); end_us > 0) {
    *proto.mutable_period_end() = ToTimestamp(end_us);
  }
  proto.set_spent_micros(spent.spent.micros());
  proto.set_reached(spent.is_reached());
  return proto;
}

}  // namespace sft::server
