#include "server/state/estimates.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

constexpr int64_t kMinute = 60'000'000;

// A job submitted at minute 100: its expected and real start and end.
EstimateRecord Record(int64_t start, int64_t begun, int64_t end, int64_t ended) {
  EstimateRecord record;
  record.submitted_us = 100 * kMinute;
  record.start_us = start * kMinute, record.begun_us = begun * kMinute;
  record.end_us = end * kMinute, record.ended_us = ended * kMinute;
  return record;
}

TEST(EstimatesTest, AnErrorIsAPartOfWhatItTookFromTheSubmit) {
  // Wait: 50 minutes expected, 40 real; total: 100 expected, 80 real.
  const EstimateRecord record = Record(150, 140, 200, 180);
  const EstimateReport report = ReportOf({record}, {record});
  EXPECT_EQ(report.start.all, 1);
  EXPECT_DOUBLE_EQ(report.start.mean, 0.25);
  EXPECT_EQ(report.start.within_20, 0);
  EXPECT_EQ(report.start.within_50, 1);
  EXPECT_DOUBLE_EQ(report.end.mean, 0.25);
  EXPECT_EQ(report.end_after_50.all, 0);
}

TEST(EstimatesTest, AStartWithinTwoMinutesIsRight) {
  const EstimateReport report = ReportOf({Record(100, 102, 0, 0), Record(100, 103, 0, 0)}, {});
  EXPECT_EQ(report.start.all, 2);
  EXPECT_EQ(report.start.within_10, 1);
  EXPECT_DOUBLE_EQ(report.start.mean, 0.5);
  EXPECT_EQ(report.end.all, 0);
}

TEST(EstimatesTest, AfterFiftyStepsTheErrorIsAPartOfTheRun) {
  EstimateRecord record = Record(100, 100, 0, 200);
  record.at50_us = 120 * kMinute, record.end50_us = 205 * kMinute;
  const EstimateReport report = ReportOf({}, {record});
  EXPECT_EQ(report.end.all, 0);
  EXPECT_DOUBLE_EQ(report.end_after_50.mean, 0.05);
  EXPECT_EQ(report.end_after_50.within_10, 1);
}

}  // namespace
}  // namespace sft::server
