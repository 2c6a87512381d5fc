#include "worker/shipping/shipper.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "tests/unit/worker/base/test_node.h"
#include "tests/unit/worker/transfer/fake_server.h"
#include "worker/channel/launch.h"

namespace sft::worker {
namespace {

class ShipperTest : public TestNode {
 protected:
  Shipper Make(std::vector<Shipper::Source> sources = {{0, "rank-0"}}) {
    return Shipper({"a-1", 3, "node-a", dir_}, sources, server_,
                   [this](int rank, const channel::Event&) { seen_.push_back(rank); });
  }
  // Appends as a rank does.
  void Append(const std::string& name, const std::string& text) {
    ASSERT_TRUE(io::AppendFile::Open(dir_ + "/" + name)->Append(text).ok());
  }
  void ShipAll(Shipper& shipper) {
    for (int turn = 0; turn < 100; ++turn) {
      const auto progress = shipper.ShipOnce(true);
      ASSERT_TRUE(progress.ok()) << progress.status();
      if (progress->complete) return;
    }
    FAIL() << "never complete";
  }
  const std::string& Log(int rank) { return server_.logs[{"a-1", rank}]; }

  FakeServer server_;
  std::vector<int> seen_;
};

std::string StepLine(int64_t step) {
  return channel::ToLine({5, channel::StepEvent{.step = step, .loss = 0.5}});
}

TEST_F(ShipperTest, AppendedTextArrivesOnce) {
  Shipper shipper = Make();
  Append("rank-0.log", "one\n");
  ASSERT_TRUE(shipper.ShipOnce(false).ok());
  Append("rank-0.log", "two\n");
  ASSERT_TRUE(shipper.ShipOnce(false).ok());
  ASSERT_TRUE(shipper.ShipOnce(false).ok());
  EXPECT_EQ(Log(0), "one\ntwo\n");
  EXPECT_FALSE((server_.ended[{"a-1", 0}]));
}

TEST_F(ShipperTest, ARestartedWorkerContinuesAtTheServersOffset) {
  Append("rank-0.log", "one\ntwo\n");
  Append("rank-0.events", StepLine(1) + StepLine(2));
  server_.logs[{"a-1", 0}] = "one\n";
  server_.event_offsets[{"a-1", 0}] = static_cast<int64_t>(StepLine(1).size());
  Shipper shipper = Make();
  ShipAll(shipper);
  EXPECT_EQ(Log(0), "one\ntwo\n");
  ASSERT_EQ(server_.events[0].size(), 1u);
  EXPECT_EQ(server_.events[0][0].metric().step(), 2);
}

TEST_F(ShipperTest, LinksAndPipesAreNotShippedButTheRestIs) {
  Append("secret", "the secret\n" + StepLine(7));
  for (const char* name : {"rank-0.log", "rank-0.events", "rank-1.gap"}) {
    ASSERT_EQ(symlink((dir_ + "/secret").c_str(), (dir_ + "/" + name).c_str()), 0);
  }
  Append("rank-1.log", "one");
  ASSERT_EQ(mkfifo((dir_ + "/rank-2.log").c_str(), 0600), 0);
  Append("rank-2.events", StepLine(1));
  Shipper shipper = Make({{0, "rank-0"}, {1, "rank-1"}, {2, "rank-2"}});
  ShipAll(shipper);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(Log(rank), "") << rank;
  EXPECT_TRUE(server_.events[0].empty());
  EXPECT_EQ(seen_, std::vector<int>({2}));
}

TEST_F(ShipperTest, AnUnreadableFileIsSkippedAndDelaysNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can take the rights of ranks";
  Append("rank-0.log", "root's own");
  ASSERT_EQ(chmod((dir_ + "/rank-0.log").c_str(), 0600), 0);
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);
  Append("rank-1.log", "one");
  ASSERT_EQ(chmod((dir_ + "/rank-1.log").c_str(), 0644), 0);
  Shipper shipper({"a-1", 3, "node-a", dir_, RankUserOf(65534, 65534)},
                  {{0, "rank-0"}, {1, "rank-1"}}, server_, [](int, const channel::Event&) {});
  ShipAll(shipper);
  EXPECT_EQ(Log(0), "");
  EXPECT_EQ(Log(1), "one");
}

TEST_F(ShipperTest, AFailedCallLosesNothing) {
  Append("rank-0.log", "text");
  Append("rank-0.events", StepLine(1));
  Shipper shipper = Make();
  server_.failure = Unavailable("no server");
  EXPECT_TRUE(absl::IsUnavailable(shipper.ShipOnce(true).status()));
  server_.failure = absl::OkStatus();
  ShipAll(shipper);
  EXPECT_EQ(Log(0), "text");
  EXPECT_EQ(server_.events[0].size(), 1u);
}

TEST_F(ShipperTest, ARefusedFileDoesNotHoldUpTheOthers) {
  Append("rank-0.log", "of no rank\n");
  Append("rank-1.log", "text\n");
  Append("rank-1.events", StepLine(1));
  server_.refused_rank = 0;
  Shipper shipper = Make({{0, "rank-0"}, {1, "rank-1"}});
  ShipAll(shipper);
  EXPECT_EQ((server_.logs[{"a-1", 1}]), "text\n");
  EXPECT_FALSE(server_.logs.contains({"a-1", 0}));
}

TEST_F(ShipperTest, LongFilesGoInChunksOfOneMebibyteAndEndWithTheirEnd) {
  const std::string text(3 * (1 << 20) + 17, 'z');
  Append("rank-0.log", text);
  Shipper shipper = Make();
  const auto first = shipper.ShipOnce(true);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->more);
  EXPECT_FALSE(first->complete);
  ShipAll(shipper);
  EXPECT_EQ(Log(0), text);
  EXPECT_EQ(server_.largest_log_chunk, size_t{1} << 20);
  EXPECT_TRUE((server_.ended[{"a-1", 0}]));
}

TEST_F(ShipperTest, AFileOfExactlyOneChunkEndsToo) {
  Append("rank-0.log", std::string(1 << 20, 'z'));
  Shipper shipper = Make();
  ShipAll(shipper);
  EXPECT_TRUE((server_.ended[{"a-1", 0}]));
}

TEST_F(ShipperTest, AFileThatNeverExistedEndsEmpty) {
  Shipper shipper = Make({{-1, "prepare"}, {0, "rank-0"}});
  ASSERT_TRUE(shipper.ShipOnce(false).ok());
  EXPECT_TRUE(server_.logs.empty()) << "nothing is said of it before";
  ShipAll(shipper);
  EXPECT_TRUE((server_.ended[{"a-1", -1}]));
  EXPECT_TRUE((server_.ended[{"a-1", 0}]));
}

TEST_F(ShipperTest, BytesRemovedByTheLogLimitAreReportedNotSentAsZeros) {
  Append("rank-0.log", "head" + std::string(96, '\0') + "tail");
  Append("rank-0.gap", ToText(channel::LogGap{4, 100}));
  Shipper shipper = Make();
  ShipAll(shipper);
  EXPECT_EQ(Log(0), "head" + std::string(96, '#') + "tail");
  EXPECT_TRUE((server_.ended[{"a-1", 0}]));
  // A server that has some of the removed bytes continues behind them too.
  server_.logs[{"a-1", 0}] = "head and more";
  Shipper again = Make();
  ShipAll(again);
  EXPECT_EQ(Log(0), "head and more" + std::string(87, '#') + "tail");
}

TEST_F(ShipperTest, HalfALineWaitsForItsEnd) {
  const std::string line = StepLine(1);
  Append("rank-0.events", line.substr(0, 20));
  Shipper shipper = Make();
  ASSERT_TRUE(shipper.ShipOnce(false).ok());
  EXPECT_TRUE(server_.events[0].empty());
  Append("rank-0.events", line.substr(20));
  ASSERT_TRUE(shipper.ShipOnce(false).ok());
  ASSERT_EQ(server_.events[0].size(), 1u);
  EXPECT_EQ(server_.events[0][0].metric().loss(), 0.5);
}

TEST_F(ShipperTest, BrokenAndUnknownLinesAreSkippedAndCountAsRead) {
  const std::string text =
      "garbage\n" + StepLine(1) + "{\"event\":\"applause\"}\n\xff\xfe\n" + StepLine(2) + "{\"ev";
  Append("rank-0.events", text);
  Shipper shipper = Make();
  ShipAll(shipper);
  // Two steps and the notice about the lost lines; the half line at the end is normal for a killed
  // rank.
  ASSERT_EQ(server_.events[0].size(), 3u);
  EXPECT_EQ(server_.events[0][2].type(), "warning");
  EXPECT_NE(server_.events[0][2].note().find("2 lines of rank-0.events before byte "),
            std::string::npos)
      << server_.events[0][2].note();
  EXPECT_EQ((server_.event_offsets[{"a-1", 0}]), static_cast<int64_t>(text.size()));
}

TEST_F(ShipperTest, DamageInTheMiddleCostsTheLinesThatItHit) {
  std::string text;
  for (int step = 1; step <= 100; ++step) text += StepLine(step);
  const size_t line = StepLine(1).size();
  text.replace(10 * line + 5, 3 * line, std::string(3 * line, '\0'));
  Append("rank-0.events", text);
  Shipper shipper = Make();
  ShipAll(shipper);
  std::vector<int64_t> steps;
  std::string told;
  for (const v1::RankEvent& event : server_.events[0]) {
    if (event.has_metric()) steps.push_back(event.metric().step());
    told += event.note();
  }
  ASSERT_GE(steps.size(), 95u);
  EXPECT_EQ(steps.back(), 100);
  EXPECT_NE(told.find("1 line of rank-0.events"), std::string::npos) << told;
}

TEST_F(ShipperTest, ALineLongerThanAChunkDoesNotStopTheFile) {
  Append("rank-0.events", std::string(5 << 19, 'x') + "\n" + StepLine(9));
  Shipper shipper = Make();
  ShipAll(shipper);
  ASSERT_EQ(server_.events[0].size(), 2u);
  EXPECT_EQ(server_.events[0][0].metric().step(), 9);
  EXPECT_NE(server_.events[0][1].note().find("1 line of"), std::string::npos);
}

TEST_F(ShipperTest, OnlyRankZerosStepsBecomeMetricsButAllAreSeenByTheNode) {
  Append("rank-0.events", StepLine(1));
  Append("rank-1.events",
         StepLine(1) + channel::ToLine({5, channel::ConsistencyEvent{1, "aa", "", true}}));
  Shipper shipper = Make({{0, "rank-0"}, {1, "rank-1"}});
  ShipAll(shipper);
  EXPECT_EQ(server_.events[0].size(), 1u);
  ASSERT_EQ(server_.events[1].size(), 1u);
  EXPECT_EQ(server_.events[1][0].type(), "consistency");
  EXPECT_EQ(seen_, (std::vector<int>{0, 1, 1}));
}

TEST(RankEventTest, AStepKeepsEveryFigureAndItsTime) {
  channel::StepEvent step;
  step.step = 3;
  step.total_steps = 9;
  step.loss = std::numeric_limits<double>::quiet_NaN();
  step.lr = 1e-5;
  step.grad_norm = 2;
  step.tokens = 100;
  step.tokens_per_second = 50;
  step.seconds = 2;
  step.gpu_memory_bytes = 1 << 30;
  step.mfu = 0.5;
  step.of_limit = 0.25;
  step.epoch = 0.25;
  step.traffic = {{"replicate", 0.125, 2.5}};
  const v1::RankEvent event = ToRankEvent(0, {1700000000.5, step}, "line");
  const v1::Metric& metric = event.metric();
  EXPECT_EQ(metric.step(), 3);
  EXPECT_EQ(metric.total_steps(), 9);
  EXPECT_TRUE(std::isnan(metric.loss()));
  EXPECT_EQ(metric.lr(), 1e-5);
  EXPECT_EQ(metric.grad_norm(), 2);
  EXPECT_EQ(metric.tokens(), 100);
  EXPECT_EQ(metric.tokens_per_second(), 50);
  EXPECT_EQ(metric.step_seconds(), 2);
  EXPECT_EQ(metric.gpu_memory_bytes(), 1 << 30);
  EXPECT_EQ(metric.mfu(), 0.5);
  EXPECT_EQ(metric.of_limit(), 0.25);
  EXPECT_EQ(metric.epoch(), 0.25);
  EXPECT_EQ(metric.time().seconds(), 1700000000);
  EXPECT_EQ(metric.time().nanos(), 500'000'000);
  EXPECT_FALSE(metric.is_eval());
  EXPECT_FALSE(metric.has_preference());
  ASSERT_EQ(metric.traffic_size(), 1);
  EXPECT_EQ(metric.traffic(0).axis(), "replicate");
  EXPECT_EQ(metric.traffic(0).exposed_share(), 0.125);
  EXPECT_EQ(metric.traffic(0).gigabytes_per_second(), 2.5);
  EXPECT_FALSE(metric.has_rank_loss());
}

TEST(RankEventTest, AStepOfAnotherRankIsItsOwnLossAndMemory) {
  channel::StepEvent step{.step = 3, .loss = 9, .tokens = 7, .gpu_memory_bytes = 5};
  EXPECT_EQ(ToRankEvent(1, {2, step}, "line").body_case(), v1::RankEvent::BODY_NOT_SET);
  step.rank_loss = 0.5;
  const v1::Metric metric = ToRankEvent(1, {2, step}, "line").metric();
  EXPECT_EQ(metric.step(), 3);
  EXPECT_EQ(metric.gpu_memory_bytes(), 5);
  EXPECT_EQ(metric.rank_loss(), 0.5);
  EXPECT_EQ(metric.time().seconds(), 2);
  EXPECT_EQ(metric.loss(), 0);
  EXPECT_EQ(metric.tokens(), 0);
  const v1::Metric first = ToRankEvent(0, {2, step}, "line").metric();
  EXPECT_EQ(first.rank_loss(), 0.5);
  EXPECT_EQ(first.loss(), 9);
}

TEST(RankEventTest, AValidationPointIsMarked) {
  const v1::RankEvent event = ToRankEvent(
      0,
      {1, channel::EvalEvent{.step = 4,
                             .loss = 1.5,
                             .preference = {{.rewards_chosen = 0.5, .rewards_rejected = 0.25}}}},
      "line");
  EXPECT_TRUE(event.metric().is_eval());
  EXPECT_EQ(event.metric().val_loss(), 1.5);
  EXPECT_EQ(event.metric().step(), 4);
  EXPECT_EQ(event.metric().preference().rewards_chosen(), 0.5);
  EXPECT_EQ(event.metric().preference().rewards_rejected(), 0.25);
}

TEST(RankEventTest, WhatAnswersWereGradedByIsPartOfTheValidation) {
  const v1::RankEvent event = ToRankEvent(
      0,
      {1,
       channel::EvalEvent{
           .step = 4, .loss = 1.5, .metrics = {{"val.rouge_l", 34.5}, {"val.exact_match", 12}}}},
      "line");
  ASSERT_EQ(event.metric().values_size(), 2);
  EXPECT_EQ(event.metric().values(0).name(), "val.rouge_l");
  EXPECT_EQ(event.metric().values(0).value(), 34.5);
  EXPECT_EQ(event.metric().values(1).name(), "val.exact_match");
}

TEST(RankEventTest, PreparationIsAPhaseForPeople) {
  const v1::RankEvent event =
      ToRankEvent(-1, {1, channel::ProgressEvent{"tokenise", 120, 150}}, "line");
  EXPECT_EQ(event.progress().phase(), "tokenise 120/150");
}

}  // namespace
}  // namespace sft::worker
