#include "server/blob/rank_log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "server/blob/metric_log.h"

namespace sft::server {
namespace {

class RankLogTest : public testing::Test {
 protected:
  RankLogTest() : dir_(io::MakeTempDir("rank-log-test").value()) {}
  ~RankLogTest() override { (void)io::RemoveAll(dir_); }

  static RankPoint Point(int32_t attempt, int64_t step, double loss, int64_t memory = 1) {
    return {.attempt = attempt, .step = step, .loss = loss, .memory_bytes = memory};
  }
  void Append(int rank, const std::vector<RankPoint>& points) {
    RankLog log(dir_);  // of a process of its own: what counts is on the disk
    const absl::Status done = log.Append("job", rank, points);
    EXPECT_TRUE(done.ok()) << done;
  }
  // "1.3 0.5 7B"
  std::string Read(int rank) {
    std::string text;
    auto ranks = RankLog(dir_).Read("job").value();
    for (const RankPoint& point : ranks[rank]) {
      text += fmt::format("{}{}.{} {} {}B", text.empty() ? "" : ", ", point.attempt, point.step,
                          point.loss, point.memory_bytes);
    }
    return text;
  }

  const std::string dir_;
};

TEST_F(RankLogTest, KeepsEachRanksPointsOnce) {
  Append(0, {Point(1, 1, 2, 10), Point(1, 2, 1.5, 11)});
  Append(3, {Point(1, 1, 4)});
  Append(0, {Point(1, 2, 9, 9), Point(1, 3, 1, 12)});
  EXPECT_EQ(Read(0), "1.1 2 10B, 1.2 1.5 11B, 1.3 1 12B");
  EXPECT_EQ(Read(3), "1.1 4 1B");
  EXPECT_EQ(Read(1), "");
  EXPECT_TRUE(RankLog(dir_).Read("other")->empty());
}

TEST_F(RankLogTest, StepsThatALaterAttemptRunsAgainGo) {
  for (int step = 1; step <= 5; ++step) Append(0, {Point(1, step, step)});
  Append(0, {Point(2, 4, 40)});
  EXPECT_EQ(Read(0), "1.1 1 1B, 1.2 2 1B, 1.3 3 1B, 2.4 40 1B");
  Append(0, {Point(1, 5, 5)});
  EXPECT_EQ(Read(0), "1.1 1 1B, 1.2 2 1B, 1.3 3 1B, 2.4 40 1B") << "of the attempt before";
}

TEST_F(RankLogTest, ALongRunTakesNoMoreRoom) {
  RankLog log(dir_);
  constexpr int kSteps = 100'000;
  for (int step = 1; step <= kSteps; step += 1000) {
    std::vector<RankPoint> points;
    for (int i = step; i < step + 1000; ++i) points.push_back(Point(1, i, i, i == 777 ? 99 : 1));
    ASSERT_TRUE(log.Append("job", 0, points).ok());
  }
  EXPECT_LE(io::TreeBytes(dir_), 16 + 32 * RankLog::kMaxPoints);
  const auto points = log.Read("job").value()[0];
  EXPECT_GE(static_cast<int>(points.size()), RankLog::kMaxPoints / 2 - 1);
  int64_t told = 0, most = 0;
  for (const RankPoint& point : points) {
    // The mean of the steps that it stands for.
    EXPECT_DOUBLE_EQ(point.loss, static_cast<double>(point.step) - (point.told - 1) / 2.0);
    told += point.told;
    EXPECT_EQ(told, point.step);
    most = std::max(most, point.memory_bytes);
  }
  EXPECT_EQ(told, kSteps);
  EXPECT_EQ(most, 99);
}

TEST_F(RankLogTest, AStepWithoutALossCountsForItsMemory) {
  RankLog log(dir_);
  const double none = std::numeric_limits<double>::quiet_NaN();
  std::vector<RankPoint> points;
  for (int step = 1; step <= 2 * RankLog::kMaxPoints; ++step) {
    points.push_back(Point(1, step, step % 2 == 0 ? none : 3, step % 2 == 0 ? 5 : 1));
  }
  ASSERT_TRUE(log.Append("job", 0, points).ok());
  const auto ranks = log.Read("job").value();
  ASSERT_GE(ranks.at(0).size(), 512u);
  for (const RankPoint& point : ranks.at(0)) {
    if (point.told == 1) continue;
    EXPECT_EQ(point.loss, 3);
    EXPECT_EQ(point.memory_bytes, 5);
  }
}

TEST_F(RankLogTest, WhatIsDamagedBeginsAnewAndATornPointIsLeftOut) {
  Append(0, {Point(1, 1, 1), Point(1, 2, 2)});
  const std::string path = dir_ + "/job/rank-0.points";
  const std::string whole = io::ReadFile(path).value();
  ASSERT_TRUE(io::WriteFileAtomic(path, whole.substr(0, whole.size() - 5)).ok());
  EXPECT_EQ(Read(0), "1.1 1 1B");
  Append(0, {Point(1, 2, 2), Point(1, 3, 3)});
  EXPECT_EQ(Read(0), "1.1 1 1B, 1.2 2 1B, 1.3 3 1B");
  for (const char* text : {"", "SFT", "XXXX............................................"}) {
    ASSERT_TRUE(io::WriteFileAtomic(path, text).ok());
    EXPECT_EQ(Read(0), "");
    Append(0, {Point(1, 7, 7)});
    EXPECT_EQ(Read(0), "1.7 7 1B");
  }
}

TEST_F(RankLogTest, GoesWithTheCurveAndOutlastsItsThinning) {
  MetricLog metrics(dir_);
  std::vector<MetricPoint> steps;
  for (int step = 1; step <= 400; ++step) {
    steps.emplace_back().attempt = 1;
    steps.back().step = step;
  }
  ASSERT_TRUE(metrics.Append("job", steps).ok());
  ASSERT_TRUE(metrics.ranks().Append("job", 1, {Point(1, 1, 1)}).ok());
  ASSERT_TRUE(metrics.Thin("job", 100).ok());
  EXPECT_EQ(MetricLog(dir_).Count("job").value(), 101);
  EXPECT_EQ(Read(1), "1.1 1 1B");
  ASSERT_TRUE(metrics.Remove("job").ok());
  EXPECT_EQ(Read(1), "");
}

}  // namespace
}  // namespace sft::server
