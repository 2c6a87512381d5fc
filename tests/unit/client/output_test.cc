#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/progress.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(FormatTest, BytesAreDecimal) {
  EXPECT_EQ(Bytes(999), "999 B");
  EXPECT_EQ(Bytes(1250), "1.25 kB");
  EXPECT_EQ(Bytes(1'250'000'000), "1.25 GB");
  EXPECT_EQ(Bytes(80'000'000'000), "80.0 GB");
}

TEST(FormatTest, DurationsHaveTwoUnits) {
  EXPECT_EQ(Duration(59), "59s");
  EXPECT_EQ(Duration(200), "3m20s");
  EXPECT_EQ(Duration(7500), "2h05m");
  EXPECT_EQ(Duration(4 * 86400 + 3 * 3600), "4d03h");
  EXPECT_EQ(Duration(-1), "-");
  EXPECT_EQ(Duration(std::numeric_limits<double>::infinity()), "-");
}

TEST(FormatTest, CountsAreShort) {
  EXPECT_EQ(Count(950), "950");
  EXPECT_EQ(Count(12'300), "12.3k");
  EXPECT_EQ(Count(4'560'000), "4.56M");
  EXPECT_EQ(Count(32.8e9), "32.80G");
}

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({"A", "B"});
  table.Add({"long cell", "x"});
  table.Add({"s", ""});
  EXPECT_EQ(table.Render(), "A          B\nlong cell  x\ns\n");
}

TEST(TableTest, WidthsAreColumnsOfTheTerminalNotBytes) {
  Table table({"A", "B"});
  table.Add({"\xc3\xa9\xc3\xa9", "x"});  // two letters in four bytes
  table.Add({"\xe6\xbc\xa2", "y"});      // one character two columns wide
  table.Add({"e\xcc\x81", "z"});         // a letter and its accent
  EXPECT_EQ(table.Render(), "A   B\n\xc3\xa9\xc3\xa9  x\n\xe6\xbc\xa2  y\ne\xcc\x81   z\n");
}

TEST(TextTest, WhatWouldMoveTheCursorIsShownInstead) {
  EXPECT_EQ(OneLine("a\x1b[31m\nb\tc\x7f\xff\xc2\x9b\xe2\x80\xae"),
            "a\\x1b[31m b c\\x7f\\xff\\x9b\\x202e");
  EXPECT_EQ(OneLine("\xe2\x80\x8b\xe2\x80\x8f\xef\xbb\xbf\xf3\xa0\x81\x81"),
            "\\x200b\\x200f\\xfeff\\xe0041");
  EXPECT_EQ(OneLine("\xe2\x80\x8d"), "\xe2\x80\x8d") << "emoji and letters are joined by it";
  EXPECT_EQ(Lines("a\nb\tc\x07"), "a\nb\tc\\x07");
  EXPECT_EQ(DumpJson(Json{{"a", "\x1b\xc2\x9b\xf3\xa0\x81\x81\n"}}),
            R"({"a":"\u001b\u009b\udb40\udc41\n"})");
  EXPECT_EQ(Columns("a\xe6\xbc\xa2"), 3u);
}

v1::Progress HalfWay() {
  v1::Progress progress;
  progress.set_step(20);
  progress.set_total_steps(40);
  progress.set_loss(1.25);
  progress.set_tokens_per_second(850);
  progress.set_eta_seconds(80);
  return progress;
}

TEST(ProgressLineTest, ABarThatFitsItsWidth) {
  const std::string line = ProgressLine(HalfWay(), v1::Job::SFT, 80);
  EXPECT_THAT(line, HasSubstr("20/40  loss 1.2500  850 tok/s  eta 1m20s"));
  EXPECT_EQ(line.front(), '[');
  EXPECT_LE(line.size(), 80u);
  EXPECT_NEAR(static_cast<double>(line.find('>')), line.find(']') / 2.0, 1.5);
}

TEST(ProgressLineTest, AJobThatAnswersCountsAnswersAndHasNoLoss) {
  const std::string line = ProgressLine(HalfWay(), v1::Job::GENERATE, 80);
  EXPECT_THAT(line, HasSubstr("20/40 answers  850 tok/s  eta 1m20s"));
}

TEST(ProgressLineTest, BeforeTheFirstStepThereIsNoLoss) {
  v1::Progress progress;
  progress.set_total_steps(40);
  const std::string line = ProgressLine(progress, v1::Job::SFT, 80);
  EXPECT_THAT(line, HasSubstr("0/40"));
  EXPECT_THAT(line, Not(HasSubstr("loss")));
}

TEST(ProgressLineTest, RanksThatWaitForEachOtherAreSaid) {
  v1::Progress progress = HalfWay();
  EXPECT_EQ(TrafficText(progress), "");
  const auto add = [&](const char* axis, double share, double rate) {
    v1::AxisTraffic& traffic = *progress.add_traffic();
    traffic.set_axis(axis);
    traffic.set_exposed_share(share);
    traffic.set_gigabytes_per_second(rate);
  };
  add("shard", 0.125, 41.5);
  add("replicate", 0.25, 0.0125);
  EXPECT_THAT(ProgressLine(progress, v1::Job::SFT, 120), HasSubstr("850 tok/s  comm 38%  eta"));
  EXPECT_EQ(
      TrafficText(progress),
      "shard 12.5% of the step waited for, 41.5 GB/s; replicate 25.0% of the step waited for, "
      "0.0125 GB/s");
  v1::Metric metric;
  *metric.mutable_traffic() = progress.traffic();
  const Json json = MetricJson(metric);
  EXPECT_EQ(json["comm.exposed_share"], 0.375);
  EXPECT_EQ(json["comm.shard.exposed_share"], 0.125);
  EXPECT_EQ(json["comm.replicate.GBps"], 0.0125);
  metric.clear_traffic();
  EXPECT_FALSE(MetricJson(metric).contains("comm.exposed_share")) << "of one rank";
}

TEST(ProgressLineTest, ANarrowTerminalGetsNoBar) {
  const std::string line = ProgressLine(HalfWay(), v1::Job::SFT, 20);
  EXPECT_LT(line.size(), 20u);
  EXPECT_EQ(line.substr(0, 5), "20/40");
}

}  // namespace
}  // namespace sft::client
