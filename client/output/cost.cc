#include "client/output/cost.h"

#include <fmt/format.h>

#include "common/base/money.h"

namespace sft::client {
namespace {

void Add(std::string& text, int64_t micros, const v1::Cost& cost, const char* what) {
  if (micros == 0) return;
  text +=
      fmt::format("{}{} {}", text.empty() ? "" : ", ", MoneyText(micros, cost.currency()), what);
}

}  // namespace

std::string CostText(const v1::Job& job) {
  const v1::Cost& cost = job.cost();
  if (IsEnded(job.state())) {
    if (!job.has_cost()) return "";
    std::string text = MoneyText(cost.micros(), cost.currency());
    Add(text, cost.lost_micros(), cost, "of it for lost work");
    return text;
  }
  std::string text;
  Add(text, cost.micros(), cost, "so far");
  Add(text, cost.lost_micros(), cost, "of it for lost work");
  Add(text, cost.micros_per_hour(), cost,
      job.state() == v1::Job::PENDING ? "for each hour that it runs" : "an hour");
  return text;
}

std::string CostText(const v1::JobPlan& plan) {
  std::string text;
  Add(text, plan.cost().micros(), plan.cost(), "for the expected run");
  Add(text, plan.cost().micros_per_hour(), plan.cost(), "an hour");
  return text;
}

Json CostJson(bool has_cost, const v1::Cost& cost) {
  if (!has_cost) return nullptr;
  return {{"currency", cost.currency()},
          {"micros", cost.micros()},
          {"lost_micros", cost.lost_micros()},
          {"micros_per_hour", cost.micros_per_hour()}};
}

}  // namespace sft::client
