#include "common/grade/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sft::grade {
namespace {

std::vector<PairedSums> Passes(int both, int only_base, int only_tuned, int none) {
  std::vector<PairedSums> rows;
  const auto add = [&](int count, double base, double tuned) {
    for (int i = 0; i < count; ++i) rows.push_back({{base, 1}, {tuned, 1}});
  };
  add(both, 1, 1);
  add(only_base, 1, 0);
  add(only_tuned, 0, 1);
  add(none, 0, 0);
  return rows;
}

TEST(CompareTest, McNemarIsTheExactBinomialTest) {
  EXPECT_DOUBLE_EQ(McNemar(0, 0), 1);
  EXPECT_NEAR(McNemar(0, 5), 0.0625, 1e-12);
  EXPECT_NEAR(McNemar(2, 8), 0.109375, 1e-12);
  EXPECT_NEAR(McNemar(5, 5), 1, 1e-12);
  EXPECT_LT(McNemar(0, 10000), 1e-300);
  EXPECT_NEAR(McNemar(10000, 10000), 1, 1e-9);
}

TEST(CompareTest, PassesHaveDifferenceIntervalAndBothPValues) {
  const Metric& metric = *FindMetric("exact_match");
  const Comparison found = Compare(metric, Passes(30, 5, 25, 40));
  EXPECT_EQ(found.rows, 100);
  EXPECT_DOUBLE_EQ(*found.base, 35);
  EXPECT_DOUBLE_EQ(*found.tuned, 55);
  EXPECT_NEAR(found.difference, 20, 1e-9);
  // The standard error of the difference is sqrt(0.3 - 0.04) / 10: 5.1 points.
  EXPECT_NEAR(found.low, 20 - 1.96 * 5.1, 1.1);
  EXPECT_NEAR(found.high, 20 + 1.96 * 5.1, 1.1);
  EXPECT_LT(found.p, 0.002);
  EXPECT_EQ(found.only_base, 5);
  EXPECT_EQ(found.only_tuned, 25);
  EXPECT_NEAR(*found.mcnemar_p, 0.000325, 1e-5);
}

TEST(CompareTest, TheSameRowsGiveTheSameNumbers) {
  const Metric& metric = *FindMetric("loss");
  std::vector<PairedSums> rows;
  for (int i = 0; i < 50; ++i) {
    rows.push_back({{3.0 + i % 7, 2.0 + i % 3}, {2.5 + i % 5, 2.0 + i % 3}});
  }
  const Comparison first = Compare(metric, rows, 2000), second = Compare(metric, rows, 2000);
  EXPECT_EQ(first.low, second.low);
  EXPECT_EQ(first.high, second.high);
  EXPECT_EQ(first.p, second.p);
  EXPECT_FALSE(first.mcnemar_p.has_value());
  EXPECT_LT(first.low, first.difference);
  EXPECT_LT(first.difference, first.high);
}

TEST(CompareTest, EqualModelsDifferByNothing) {
  const Comparison found = Compare(*FindMetric("f1"), Passes(10, 0, 0, 10), 500);
  EXPECT_EQ(found.difference, 0);
  EXPECT_EQ(found.low, 0);
  EXPECT_EQ(found.high, 0);
  EXPECT_EQ(found.p, 1);
}

TEST(CompareTest, FewRowsProveLittle) {
  const Metric& metric = *FindMetric("exact_match");
  EXPECT_EQ(Compare(metric, Passes(0, 0, 2, 0)).p, 0.5);
  EXPECT_EQ(Compare(metric, Passes(0, 0, 5, 0)).p, 1.0 / 16);
  EXPECT_LT(Compare(metric, Passes(0, 0, 20, 0)).p, 0.001);
  const Comparison one = Compare(metric, Passes(0, 0, 1, 0));
  EXPECT_EQ(one.difference, 100);
  EXPECT_TRUE(std::isnan(one.low) && std::isnan(one.high));
  EXPECT_EQ(one.p, 1);
}

TEST(CompareTest, NoRowsAndOneRowAreNoFault) {
  const Comparison none = Compare(*FindMetric("f1"), {});
  EXPECT_FALSE(none.base.has_value());
  EXPECT_EQ(none.p, 1);
  const Comparison one =
      Compare(*FindMetric("bleu"), {{std::vector<double>(10), std::vector<double>(10)}}, 10);
  EXPECT_EQ(one.rows, 1);
  EXPECT_EQ(*one.base, 0);
  const Comparison empty = Compare(*FindMetric("loss"), {{{0, 0}, {0, 0}}}, 10);
  EXPECT_FALSE(empty.base.has_value());
}

}  // namespace
}  // namespace sft::grade
