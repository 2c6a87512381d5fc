#include "server/state/prices.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace sft::server {
namespace {

constexpr int64_t kHourUs = 3'600'000'000;
constexpr char kCpuType[] = "CPU";
constexpr int64_t kMostMicros = std::numeric_limits<int64_t>::max();

std::chrono::year_month MonthAt(int64_t time_us) {
  const auto day = std::chrono::floor<std::chrono::days>(
      std::chrono::sys_time<std::chrono::microseconds>(std::chrono::microseconds(time_us)));
  const std::chrono::year_month_day date(day);
  return date.year() / date.month();
}

int64_t BeginOf(std::chrono::year_month month) {
  const std::chrono::sys_time<std::chrono::microseconds> begin =
      std::chrono::sys_days(month / std::chrono::day(1));
  return begin.time_since_epoch().count();
}

// The value in effect at that time: of the last start that is not later.
const int64_t* InEffect(const std::map<int64_t, int64_t>* starts, int64_t time_us) {
  if (starts == nullptr) return nullptr;
  const auto next = starts->upper_bound(time_us);
  return next == starts->begin() ? nullptr : &std::prev(next)->second;
}

int64_t NextStart(const std::map<int64_t, int64_t>* starts, int64_t time_us, int64_t end_us) {
  if (starts == nullptr) return end_us;
  const auto next = starts->upper_bound(time_us);
  return next == starts->end() ? end_us : std::min(end_us, next->first);
}

}  // namespace

Cost Cost::Of(int64_t held_us, int64_t micros_per_hour) {
  Cost cost;
  cost.units_ = absl::uint128(static_cast<uint64_t>(held_us)) *
                absl::uint128(static_cast<uint64_t>(micros_per_hour));
  return cost;
}

Cost Cost::FromParts(int64_t micros, int64_t rest) {
  Cost cost = Of(kHourUs, micros);
  cost.units_ += absl::uint128(static_cast<uint64_t>(rest));
  return cost;
}

Cost& Cost::operator+=(const Cost& other) {
  units_ += other.units_;
  return *this;
}

int64_t Cost::micros() const {
  const absl::uint128 rounded = (units_ + kHourUs / 2) / kHourUs;
  return static_cast<int64_t>(std::min<absl::uint128>(rounded, kMostMicros));
}

int64_t Cost::whole() const {
  return static_cast<int64_t>(std::min<absl::uint128>(units_ / kHourUs, kMostMicros));
}

int64_t Cost::rest() const { return static_cast<int64_t>(units_ % kHourUs); }

bool Cost::Reaches(int64_t amount_micros, int percent) const {
  return units_ * 100 >= Of(kHourUs, amount_micros).units_ * static_cast<unsigned>(percent);
}

PriceList::PriceList(const std::vector<PriceRecord>& prices) {
  for (const PriceRecord& price : prices) {
    starts_[price.gpu_type][price.start_us] = price.micros_per_hour;
    currency_ = price.currency;
  }
}

const PriceList::Starts* PriceList::StartsOf(std::string_view gpu_type) const {
  const auto found = starts_.find(gpu_type);
  return found == starts_.end() ? nullptr : &found->second;
}

int64_t PriceList::At(std::string_view gpu_type, int64_t time_us) const {
  const int64_t* own = InEffect(StartsOf(gpu_type), time_us);
  if (own != nullptr) return *own;
  const int64_t* others = gpu_type == kCpuType ? nullptr : InEffect(StartsOf(""), time_us);
  return others == nullptr ? 0 : *others;
}

Cost PriceList::Of(std::string_view gpu_type, int64_t begin_us, int64_t end_us) const {
  const Starts* const own = StartsOf(gpu_type);
  const Starts* const others = StartsOf("");
  Cost cost;
  while (begin_us < end_us) {
    const int64_t until_us =
        std::min(NextStart(own, begin_us, end_us), NextStart(others, begin_us, end_us));
    cost += Cost::Of(until_us - begin_us, At(gpu_type, begin_us));
    begin_us = until_us;
  }
  return cost;
}

bool PriceList::HasBetween(std::string_view gpu_type, int64_t begin_us, int64_t end_us) const {
  const auto begins_before = [end_us](const Starts* starts) {
    return starts != nullptr && starts->begin()->first < end_us;
  };
  return begin_us < end_us && (begins_before(StartsOf(gpu_type)) ||
                               (gpu_type != kCpuType && begins_before(StartsOf(""))));
}

int64_t MonthOf(int64_t time_us) { return BeginOf(MonthAt(time_us)); }

int64_t NextMonth(int64_t time_us) { return BeginOf(MonthAt(time_us) + std::chrono::months(1)); }

void MoveOn(BudgetRecord& budget, int64_t now_us) {
  if (budget.period != BudgetRecord::Period::kMonth) return;
  const int64_t month_us = MonthOf(now_us);
  if (month_us <= budget.begin_us) return;
  budget.begin_us = month_us;
  budget.freed = Cost();
  budget.warned = budget.reached = false;
}

int64_t EndOf(const BudgetRecord& budget) {
  return budget.period == BudgetRecord::Period::kMonth ? NextMonth(budget.begin_us) : 0;
}

}  // namespace sft::server
