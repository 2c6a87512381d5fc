#include "server/state/prices.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/clock.h"

namespace sft::server {
namespace {

constexpr int64_t kHour = 3'600'000'000;
constexpr int64_t kEuro = 1'000'000;

int64_t At(const char* utc) { return UnixMicros(*ParseUtc(utc)); }

// H100: 2.00 from hour 10 on, 3.00 from hour 20 on; other GPUs: 1.00 from hour 15 on; CPU: none.
PriceList Prices() {
  return PriceList({{"H100", 20 * kHour, 3 * kEuro, "EUR", "ann"},
                    {"H100", 10 * kHour, 2 * kEuro, "EUR", "ann"},
                    {"", 15 * kHour, kEuro, "EUR", "ann"}});
}

struct Span {
  const char* name;
  const char* type;
  int64_t begin, end;
  int64_t micros;

  friend void PrintTo(const Span& span, std::ostream* out) { *out << span.name; }
};

class PriceTableTest : public testing::TestWithParam<Span> {};

TEST_P(PriceTableTest, EachMomentHasThePriceThatWasInEffect) {
  const Span& span = GetParam();
  EXPECT_EQ(Prices().Of(span.type, span.begin, span.end).micros(), span.micros);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PriceTableTest,
    testing::Values(Span{"before any price", "H100", 0, 9 * kHour, 0},
                    Span{"one price", "H100", 11 * kHour, 13 * kHour, 4 * kEuro},
                    Span{"begins before it", "H100", 9 * kHour, 11 * kHour, 2 * kEuro},
                    Span{"over a change", "H100", 19 * kHour, 21 * kHour, 5 * kEuro},
                    Span{"over all", "H100", 0, 30 * kHour, 50 * kEuro},
                    Span{"at the moment of the change", "H100", 20 * kHour, 21 * kHour, 3 * kEuro},
                    Span{"another type", "A100", 14 * kHour, 17 * kHour, 2 * kEuro},
                    Span{"that of others does not touch a type with its own", "H100", 15 * kHour,
                         16 * kHour, 2 * kEuro},
                    Span{"CPU has none of the GPUs' price", "CPU", 0, 30 * kHour, 0},
                    Span{"ends before it begins", "H100", 13 * kHour, 11 * kHour, 0},
                    Span{"nothing", "H100", 13 * kHour, 13 * kHour, 0}));

TEST(PriceListTest, OthersPriceHoldsForATypeUntilItHasItsOwn) {
  const PriceList prices({{"", 0, kEuro, "EUR", ""}, {"A100", 10 * kHour, 5 * kEuro, "EUR", ""}});
  EXPECT_EQ(prices.Of("A100", 8 * kHour, 12 * kHour).micros(), 12 * kEuro);
  EXPECT_EQ(prices.At("A100", 10 * kHour - 1), kEuro);
  EXPECT_EQ(prices.At("A100", 10 * kHour), 5 * kEuro);
}

TEST(PriceListTest, WithoutPricesNothingCosts) {
  EXPECT_TRUE(PriceList().empty());
  EXPECT_EQ(PriceList().Of("H100", 0, kHour).micros(), 0);
  EXPECT_EQ(PriceList().currency(), "");
}

TEST(PriceListTest, KnowsWhetherATypeHadAPriceBetweenTwoTimes) {
  const PriceList prices = Prices();
  EXPECT_FALSE(prices.HasBetween("H100", 5 * kHour, 10 * kHour));
  EXPECT_TRUE(prices.HasBetween("H100", 5 * kHour, 11 * kHour));
  EXPECT_FALSE(prices.HasBetween("A100", 5 * kHour, 15 * kHour));
  EXPECT_TRUE(prices.HasBetween("A100", 16 * kHour, 17 * kHour)) << "that of others";
  EXPECT_FALSE(prices.HasBetween("CPU", 0, 30 * kHour));
  EXPECT_FALSE(prices.HasBetween("H100", 12 * kHour, 12 * kHour)) << "from now on";
  EXPECT_FALSE(prices.HasBetween("H100", 13 * kHour, 12 * kHour)) << "later";
}

TEST(CostTest, PartsAddUpToTheWholeWhereverItIsCut) {
  // A third of a cent an hour, cut into pieces of 7 microseconds and more.
  const PriceList prices({{"H100", 0, 3'333, "EUR", ""}});
  const int64_t end = 100 * kHour;
  Cost sum;
  int64_t piece = 7;
  for (int64_t at = 0; at < end; at += piece, piece = piece * 3 % 1'000'003 + 1'000'000) {
    sum += prices.Of("H100", at, std::min(end, at + piece));
  }
  EXPECT_EQ(sum, prices.Of("H100", 0, end));
  EXPECT_EQ(sum.micros(), 333'300);
}

TEST(CostTest, IsRoundedOnlyWhereItIsShown) {
  Cost cost = Cost::Of(kHour / 2, 1);
  EXPECT_EQ(cost.micros(), 1) << "a half up";
  EXPECT_EQ(cost.whole(), 0);
  EXPECT_EQ(cost.rest(), kHour / 2);
  cost += Cost::FromParts(cost.whole(), cost.rest());
  EXPECT_EQ(cost.micros(), 1) << "two halves are one, not two";
  EXPECT_EQ(Cost::FromParts(cost.whole(), cost.rest()), cost);
}

TEST(CostTest, TenYearsOfAFleetAtTheHighestPriceAreNotTooMuch) {
  const int64_t ten_years = int64_t{3660} * 24 * kHour;
  Cost cost;
  for (int slot = 0; slot < 10'000; ++slot) cost += Cost::Of(ten_years, 1'000'000 * kEuro);
  EXPECT_EQ(cost.micros(), std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(cost.Reaches(std::numeric_limits<int64_t>::max(), 100));
}

TEST(CostTest, ReachesAShareWithoutRounding) {
  const Cost cost = Cost::Of(kHour, 80 * kEuro);
  EXPECT_TRUE(cost.Reaches(100 * kEuro, 80));
  EXPECT_FALSE(cost.Reaches(100 * kEuro, 81));
  Cost less = Cost::Of(kHour - 1, 80 * kEuro);
  EXPECT_FALSE(less.Reaches(100 * kEuro, 80)) << "a microsecond earlier";
}

TEST(BudgetTest, AMonthBeginsAtItsFirstMomentInUtc) {
  EXPECT_EQ(MonthOf(At("2026-11-30T23:59:59.999Z")), At("2026-11-01T00:00:00Z"));
  EXPECT_EQ(NextMonth(At("2026-11-30T23:59:59.999Z")), At("2026-12-01T00:00:00Z"));
  EXPECT_EQ(MonthOf(At("2026-12-01T00:00:00Z")), At("2026-12-01T00:00:00Z"));
  EXPECT_EQ(NextMonth(At("2026-12-31T00:00:00Z")), At("2027-01-01T00:00:00Z"));
  EXPECT_EQ(NextMonth(At("2028-01-31T12:00:00Z")), At("2028-02-01T00:00:00Z"));
}

TEST(BudgetTest, MovesOnToAMonthButNeverBack) {
  BudgetRecord budget;
  budget.begin_us = At("2026-11-01T00:00:00Z");
  budget.freed = Cost::Of(kHour, kEuro);
  budget.warned = budget.reached = true;
  MoveOn(budget, At("2026-11-30T00:00:00Z"));
  EXPECT_EQ(budget.freed.micros(), kEuro);
  EXPECT_TRUE(budget.warned);
  MoveOn(budget, At("2026-12-02T00:00:00Z"));
  EXPECT_EQ(budget.begin_us, At("2026-12-01T00:00:00Z"));
  EXPECT_EQ(budget.freed.micros(), 0);
  EXPECT_FALSE(budget.warned || budget.reached);
  EXPECT_EQ(EndOf(budget), At("2027-01-01T00:00:00Z"));
  budget.freed = Cost::Of(kHour, kEuro);
  MoveOn(budget, At("2026-11-30T00:00:00Z"));
  EXPECT_EQ(budget.begin_us, At("2026-12-01T00:00:00Z")) << "the clock was set back";
  EXPECT_EQ(budget.freed.micros(), kEuro);
}

TEST(BudgetTest, ATotalHasNoEnd) {
  BudgetRecord budget;
  budget.period = BudgetRecord::Period::kTotal;
  budget.begin_us = At("2026-11-11T00:00:00Z");
  budget.reached = true;
  MoveOn(budget, At("2029-01-01T00:00:00Z"));
  EXPECT_EQ(budget.begin_us, At("2026-11-11T00:00:00Z"));
  EXPECT_TRUE(budget.reached);
  EXPECT_EQ(EndOf(budget), 0);
}

}  // namespace
}  // namespace sft::server
