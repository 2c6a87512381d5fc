#include "server/blob/drawn_series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace sft::server {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

DrawnSeries::Drawing Draw(const std::vector<double>& y, const DrawnSeries::Options& options) {
  DrawnSeries series(options);
  for (size_t i = 0; i < y.size(); ++i) series.Add(static_cast<double>(i + 1), y[i]);
  return series.Draw();
}

TEST(DrawnSeriesTest, FewPointsComeAsTheyAre) {
  const auto drawing = Draw({3, 1, 2, 5}, {.max_parts = 2});
  EXPECT_EQ(drawing.x, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(drawing.y, (std::vector<float>{3, 1, 2, 5}));
  EXPECT_EQ(drawing.points, 4);
  EXPECT_EQ(drawing.parts, 0);
  EXPECT_EQ(Draw({}, {}).points, 0);
}

TEST(DrawnSeriesTest, OfManyEachPartKeepsItsLowestItsHighestAndItsGaps) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0, 1);
  for (const int count : {9, 100, 12'345, 100'000}) {
    std::vector<double> y;
    for (int i = 0; i < count; ++i) y.push_back(noise(random) < 0.001 ? kNone : noise(random));
    y[static_cast<size_t>(count / 2)] = 99;
    y[static_cast<size_t>(count / 3)] = -99;
    const auto drawing = Draw(y, {.max_parts = 4});
    EXPECT_EQ(drawing.points, count);
    ASSERT_GE(drawing.parts, 2);
    EXPECT_LE(drawing.parts, 4);
    EXPECT_LE(drawing.x.size(), 3u * 4 + 2);
    EXPECT_EQ(drawing.x.front(), 1);
    EXPECT_EQ(drawing.x.back(), count) << "the newest point is always there";
    EXPECT_TRUE(std::ranges::is_sorted(drawing.x));
    EXPECT_TRUE(std::ranges::count(drawing.y, 99.0F) == 1);
    EXPECT_TRUE(std::ranges::count(drawing.y, -99.0F) == 1);
    for (size_t i = 0; i < drawing.x.size(); ++i) {
      const auto of = static_cast<float>(y[static_cast<size_t>(drawing.x[i]) - 1]);
      EXPECT_TRUE(of == drawing.y[i] || (std::isnan(of) && std::isnan(drawing.y[i])));
    }
    const bool gaps = std::ranges::any_of(y, [](double value) { return std::isnan(value); });
    EXPECT_EQ(gaps, std::ranges::any_of(drawing.y, [](float value) { return std::isnan(value); }));
  }
}

TEST(DrawnSeriesTest, APartIsAsWideAsEveryOther) {
  std::vector<double> y(64, 1);
  for (int i = 32; i < 64; ++i) y[static_cast<size_t>(i)] = 2;
  const auto drawing = Draw(y, {.max_parts = 8});
  // The lowest and the highest of parts of a flat line are one point each, its first.
  for (size_t i = 1; i + 1 < drawing.x.size(); ++i) {
    EXPECT_EQ(drawing.x[i] - drawing.x[i - 1], drawing.x[1] - drawing.x[0]);
  }
}

TEST(DrawnSeriesTest, ASpanHasTheNextPointOnEitherSide) {
  std::vector<double> y(100);
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<double>(i);
  const auto drawing = Draw(y, {.begin = 50, .end = 52});
  EXPECT_EQ(drawing.x, (std::vector<double>{49, 50, 51, 52, 53}));
  EXPECT_EQ(drawing.points, 5);
  EXPECT_EQ(Draw(y, {.begin = 50.5, .end = 50.6}).x, (std::vector<double>{50, 51}));
  EXPECT_EQ(Draw(y, {.begin = 200, .end = 300}).x, (std::vector<double>{100}));
}

TEST(DrawnSeriesTest, AMeanGoesOverAllPointsAndLeavesGaps) {
  const auto whole = Draw({0, 0, 1, kNone, 1, 1}, {.half_life = 1});
  ASSERT_EQ(whole.y.size(), 6u);
  EXPECT_FLOAT_EQ(whole.y[0], 0);
  EXPECT_FLOAT_EQ(whole.y[2], 4.0F / 7);
  EXPECT_TRUE(std::isnan(whole.y[3]));
  EXPECT_FLOAT_EQ(whole.y[4], 12.0F / 15);
  const auto part = Draw({0, 0, 1, kNone, 1, 1}, {.begin = 5, .end = 5, .half_life = 1});
  EXPECT_FLOAT_EQ(part.y[1], whole.y[4]) << "of all points, drawn or not";
}

TEST(DrawnSeriesTest, PointsAtOnePlaceAreOnePart) {
  DrawnSeries series({.max_parts = 2});
  for (int i = 0; i < 100; ++i) series.Add(5, i);
  EXPECT_EQ(series.Draw().y, (std::vector<float>{0, 99}));
  DrawnSeries far({.max_parts = 2});
  for (int i = 0; i < 100; ++i) far.Add(5, i);
  far.Add(1e18, 7);
  EXPECT_EQ(far.Draw().x.back(), 1e18);
}

}  // namespace
}  // namespace sft::server
