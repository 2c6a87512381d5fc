#pragma once

#include <absl/numeric/int128.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// What slots cost. Pure. Times are microseconds since the Unix epoch; amounts of money are in
// millionths of the currency ("micros").

namespace sft::server {

// What an hour of a slot costs from a time on.
struct PriceRecord {
  std::string gpu_type;  // "H100", "CPU"; empty: every type of GPU without a price of its own
  int64_t start_us = 0;
  int64_t micros_per_hour = 0;
  std::string currency;
  std::string set_by;
};

// A sum of prices times held time, kept exact: a division only rounds what is shown. Sums of parts
// are the sum of the whole, wherever it was cut.
class Cost {
 public:
  // One slot for so long at a price; neither is negative.
  static Cost Of(int64_t held_us, int64_t micros_per_hour);
  // From its two parts, as a row holds them.
  static Cost FromParts(int64_t micros, int64_t rest);

  Cost& operator+=(const Cost& other);
  // Rounded, a half up; at most the largest int64_t.
  int64_t micros() const;
  // Whole micros, and what is beyond them: below an hour in microseconds.
  int64_t whole() const;
  int64_t rest() const;
  // Whether it is at least `percent` percent of the amount.
  bool Reaches(int64_t amount_micros, int percent) const;
  bool operator==(const Cost&) const = default;

 private:
  absl::uint128 units_ = 0;  // micros per hour times microseconds
};

// All prices that were, are and will be in effect. Immutable.
class PriceList {
 public:
  PriceList() = default;
  // In any order; one of a type and time.
  explicit PriceList(const std::vector<PriceRecord>& prices);

  bool empty() const { return starts_.empty(); }
  // Of all of them; empty where there are none.
  const std::string& currency() const { return currency_; }
  // An hour of a slot at that time; 0: it has no price. A type's own price goes before that of all
  // GPUs, which is none of CPU slots.
  int64_t At(std::string_view gpu_type, int64_t time_us) const;
  // A slot from `begin_us` to `end_us`, each moment at the price that was in effect. A span that
  // ends before it begins, as under a clock that was set back, costs nothing.
  Cost Of(std::string_view gpu_type, int64_t begin_us, int64_t end_us) const;
  // Whether anything of the type had a price between the times, so that none may be set there.
  bool HasBetween(std::string_view gpu_type, int64_t begin_us, int64_t end_us) const;

 private:
  using Starts = std::map<int64_t, int64_t>;  // time → price from then on
  const Starts* StartsOf(std::string_view gpu_type) const;
  std::map<std::string, Starts, std::less<>> starts_;
  std::string currency_;
};

// What a project's slots may cost.
struct BudgetRecord {
  // Stored: never renumber.
  enum class Period : int { kMonth = 1, kTotal = 2 };
  enum class Action : int { kHold = 1, kStop = 2 };

  std::string project;
  int64_t amount_micros = 0;
  Period period = Period::kMonth;
  int warn_percent = 80;
  Action on_reached = Action::kHold;
  // The period that the rest is about: from then on.
  int64_t begin_us = 0;
  Cost freed;                            // of slots that were freed in it
  bool warned = false, reached = false;  // was told
};

// The first moment of the month in UTC, and of the next one.
int64_t MonthOf(int64_t time_us);
int64_t NextMonth(int64_t time_us);

// Moves a budget on to the period of that time: of another one nothing is spent and nothing told. A
// period once begun does not end by a clock that was set back.
void MoveOn(BudgetRecord& budget, int64_t now_us);
// When its period ends; 0: never.
int64_t EndOf(const BudgetRecord& budget);

}  // namespace sft::server
