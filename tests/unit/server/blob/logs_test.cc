#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "common/io/file.h"
#include "server/blob/log_store.h"
#include "server/blob/metric_log.h"
#include "server/blob/segment_file.h"

namespace {

// Names of the files that were synced.
std::set<std::string>& Synced() {
  static std::set<std::string> synced;
  return synced;
}

}  // namespace

// Replaces the C library's.
extern "C" int fdatasync(int fd) {
  const auto path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd));
  Synced().insert(path.parent_path().filename() / path.filename());
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

namespace sft::server {
namespace {

class LogsTest : public testing::Test {
 protected:
  LogsTest() : dir_(io::MakeTempDir("logs-test").value()) {}
  ~LogsTest() override { (void)io::RemoveAll(dir_); }
  const std::string dir_;
};

absl::StatusOr<int64_t> Append(LogStore& logs, const std::string& stream, int64_t offset,
                               std::string_view bytes, int64_t skipped_from = -1) {
  const auto appended =
      logs.Append(stream, {.offset = offset, .bytes = bytes, .skipped_from = skipped_from});
  if (!appended.ok()) return appended.status();
  return appended->end;
}

// Everything that exists, with "[begin-end)" for holes.
std::string ReadAll(LogStore& logs, const std::string& stream) {
  std::string text;
  int64_t offset = 0;
  while (true) {
    const LogStore::Chunk chunk = logs.Read(stream, offset, 1 << 20).value();
    if (chunk.offset > offset) text += fmt::format("[{}-{})", offset, chunk.offset);
    text += chunk.bytes;
    if (chunk.bytes.empty() && chunk.offset == offset) return text;
    offset = chunk.offset + static_cast<int64_t>(chunk.bytes.size());
  }
}

MetricPoint Point(int64_t attempt, int64_t step, bool eval = false) {
  MetricPoint point;
  point.attempt = attempt;
  point.step = step;
  point.is_eval = eval ? 1 : 0;
  point.loss = 1.0 / static_cast<double>(step + 1);
  return point;
}

TEST_F(LogsTest, AStreamThatWasClosedMeanwhileIsStillSynced) {
  LogStore logs(dir_);
  ASSERT_TRUE(Append(logs, "a/rank-0", 0, "first").ok());
  for (size_t i = 0; i < LogStore::kMaxOpen; ++i) {
    ASSERT_TRUE(Append(logs, fmt::format("b/rank-{}", i), 0, "x").ok());
  }
  Synced().clear();
  // The end of the log, which adds no bytes.
  ASSERT_TRUE(logs.Append("a/rank-0", {.offset = 5, .sync = true}).ok());
  EXPECT_TRUE(Synced().contains("rank-0/00000000000000000000.seg"));
}

TEST_F(LogsTest, AFullSegmentIsSyncedBeforeTheNextBeginsThoughItWasClosedMeanwhile) {
  const SegmentFile::Shape shape{.head_bytes = 4, .segment_bytes = 4};
  ASSERT_TRUE(SegmentFile::Open(dir_ + "/log", shape)->Append(0, "full").ok());
  SegmentFile again = SegmentFile::Open(dir_ + "/log", shape).value();
  Synced().clear();
  ASSERT_TRUE(again.Append(4, "more").ok());
  EXPECT_TRUE(Synced().contains("log/00000000000000000000.seg"));
}

TEST_F(LogsTest, AppendIsIdempotentByOffset) {
  LogStore logs(dir_);
  EXPECT_EQ(Append(logs, "a/rank-0", 0, "hello ").value(), 6);
  EXPECT_EQ(Append(logs, "a/rank-0", 0, "hello ").value(), 6);
  EXPECT_EQ(Append(logs, "a/rank-0", 3, "lo world").value(), 11);
  EXPECT_EQ(logs.Read("a/rank-0", 0, 100)->bytes, "hello world");
}

TEST_F(LogsTest, AGapIsNotWrittenAndReturnsTheExpectedOffset) {
  LogStore logs(dir_);
  ASSERT_TRUE(Append(logs, "a/rank-0", 0, "abc").ok());
  EXPECT_EQ(Append(logs, "a/rank-0", 10, "xyz").value(), 3);
  EXPECT_EQ(logs.Size("a/rank-0").value(), 3);
}

TEST_F(LogsTest, ALogContinuesInAnotherProcess) {
  {
    LogStore before(dir_);
    ASSERT_TRUE(Append(before, "a/rank-0", 0, "one\n").ok());
  }
  LogStore logs(dir_);
  EXPECT_EQ(Append(logs, "a/rank-0", 4, "two\n").value(), 8);
  EXPECT_EQ(logs.Read("a/rank-0", 2, 100)->bytes, "e\ntwo\n");
}

TEST_F(LogsTest, MoreStreamsThanAreKeptOpenStayWhole) {
  LogStore logs(dir_);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < static_cast<int>(LogStore::kMaxOpen) + 8; ++i) {
      ASSERT_EQ(Append(logs, LogStore::RankStream("a", i), round, "x").value(), round + 1);
    }
  }
}

TEST_F(LogsTest, TailStartsAtALine) {
  LogStore logs(dir_);
  ASSERT_TRUE(Append(logs, "s", 0, "one\ntwo\nthree\n").ok());
  EXPECT_EQ(logs.TailOffset("s", 0).value(), 14) << "nothing of what is written already";
  EXPECT_EQ(logs.TailOffset("s", 1).value(), 8);
  EXPECT_EQ(logs.TailOffset("s", 2).value(), 4);
  EXPECT_EQ(logs.TailOffset("s", 9).value(), 0);
  EXPECT_EQ(logs.TailOffset("empty", 3).value(), 0);
}

TEST_F(LogsTest, AStreamSpansSegments) {
  SegmentFile file = SegmentFile::Open(dir_ + "/s").value();
  const std::string part(SegmentFile::kSegmentBytes - 3, 'a');
  ASSERT_TRUE(file.Append(0, part).ok());
  ASSERT_TRUE(file.Append(file.size(), "bbbbbb").ok());
  ASSERT_TRUE(file.Append(file.size(), "cccc").ok());
  EXPECT_EQ(io::ListDir(dir_ + "/s")->size(), 2u);
  const SegmentFile again = SegmentFile::Open(dir_ + "/s").value();
  EXPECT_EQ(again.size(), SegmentFile::kSegmentBytes + 7);
  EXPECT_EQ(again.Read(SegmentFile::kSegmentBytes - 4, 100).value(), "abbbbbbcccc");
  EXPECT_TRUE(absl::IsOutOfRange(again.Read(again.size() + 1, 1).status()));
}

TEST_F(LogsTest, LostBytesLeaveAHole) {
  {
    LogStore logs(dir_);
    ASSERT_EQ(Append(logs, "s", 0, "head\n").value(), 5);
    EXPECT_EQ(Append(logs, "s", 1000, "tail\n").value(), 5) << "a gap that nobody has explained";
    EXPECT_EQ(Append(logs, "s", 1000, "tail\n", 5).value(), 1005);
    EXPECT_EQ(Append(logs, "s", 1000, "tail\n", 5).value(), 1005) << "sent twice";
    EXPECT_EQ(ReadAll(logs, "s"), "head\n[5-1000)tail\n");
    EXPECT_EQ(Append(logs, "s", 2000, "", 1005).value(), 2000) << "the end itself is missing";
  }
  LogStore logs(dir_);
  EXPECT_EQ(logs.Size("s").value(), 2000);
  EXPECT_EQ(Append(logs, "s", 2000, "more\n").value(), 2005);
  EXPECT_EQ(ReadAll(logs, "s"), "head\n[5-1000)tail\n[1005-2000)more\n");
  EXPECT_EQ(logs.TailOffset("s", 1).value(), 2000);
}

TEST_F(LogsTest, ALogOverItsLimitKeepsItsBeginningAndItsNewestPart) {
  constexpr int64_t kLimit = 64 << 10;
  LogStore logs(dir_, {.log_bytes = kLimit, .job_bytes = 0});
  std::string all;
  for (int line = 0; line < 20'000; ++line) {
    const std::string text = fmt::format("line {:08}\n", line);
    ASSERT_EQ(Append(logs, "s", static_cast<int64_t>(all.size()), text).value(),
              static_cast<int64_t>(all.size() + text.size()));
    all += text;
    ASSERT_LE(logs.StoredBytes("s").value(), kLimit + 14);
  }
  EXPECT_GE(logs.StoredBytes("s").value(), kLimit / 2);
  const LogStore::Chunk head = logs.Read("s", 0, 1 << 20).value();
  EXPECT_GE(head.bytes.size(), 4096u);
  EXPECT_EQ(head.bytes, all.substr(0, head.bytes.size()));
  const auto after = static_cast<int64_t>(head.bytes.size());
  const LogStore::Chunk tail = logs.Read("s", after, 1 << 20).value();
  EXPECT_GT(tail.offset, after);
  EXPECT_EQ(tail.bytes, all.substr(static_cast<size_t>(tail.offset)));
}

TEST_F(LogsTest, TheLargestLogOfAJobIsTrimmedFirst) {
  LogStore logs(dir_, {.log_bytes = 128 << 10, .job_bytes = 100 << 10});
  const std::string small(10'000, 's'), large(100'000, 'l');
  ASSERT_TRUE(Append(logs, LogStore::RankStream("a1", 0), 0, small).ok());
  for (int i = 0; i < 12; ++i) {
    const std::string piece = large.substr(0, 10'000);
    ASSERT_TRUE(Append(logs, LogStore::RankStream("a2", 0), i * 10'000, piece).ok());
  }
  ASSERT_TRUE(Append(logs, LogStore::PrepareStream("a2", "node"), 0, small).ok());
  ASSERT_TRUE(Append(logs, LogStore::RankStream("other", 0), 0, large).ok());
  ASSERT_TRUE(logs.TrimJob({"a1", "a2", "never"}).ok());
  EXPECT_EQ(logs.StoredBytes("a1/rank-0").value(), 10'000);
  EXPECT_EQ(logs.StoredBytes("a2/node/prepare").value(), 10'000);
  EXPECT_LE(logs.StoredBytes("a2/rank-0").value(), 80 << 10);
  EXPECT_EQ(logs.StoredBytes("other/rank-0").value(), 100'000) << "another job";
}

TEST_F(LogsTest, StepsThatALaterAttemptRanAgainAreSuperseded) {
  MetricLog metrics(dir_);
  std::vector<MetricPoint> points;
  for (int step = 1; step <= 35; ++step) points.push_back(Point(1, step));
  points.push_back(Point(1, 35, true));
  for (int step = 21; step <= 50; ++step) points.push_back(Point(2, step));
  for (int step = 41; step <= 60; ++step) points.push_back(Point(4, step));
  ASSERT_TRUE(metrics.Append("job", points).ok());
  const auto starts = metrics.Starts("job").value();
  ASSERT_EQ(starts.size(), 3u);
  EXPECT_EQ(starts[1].attempt, 2);
  EXPECT_EQ(starts[1].index, 36);
  EXPECT_EQ(starts[1].step, 21);
  EXPECT_EQ(starts[2].attempt, 4);
  std::vector<int64_t> curve;
  for (const MetricPoint& point : points) {
    if (!IsSuperseded(point, starts)) curve.push_back(point.step);
  }
  ASSERT_EQ(curve.size(), 60u);
  for (size_t i = 0; i < curve.size(); ++i) EXPECT_EQ(curve[i], static_cast<int64_t>(i) + 1);
  EXPECT_TRUE(metrics.Starts("none")->empty());
}

TEST_F(LogsTest, AThinnedCurveKeepsItsEndsAndValidationsAndIsNotThinnedAgain) {
  MetricLog metrics(dir_);
  std::vector<MetricPoint> points;
  for (int step = 1; step <= 600; ++step) {
    points.push_back(Point(1, step));
    if (step % 100 == 0) points.push_back(Point(1, step, true));
  }
  for (int step = 501; step <= 1003; ++step) points.push_back(Point(2, step));
  ASSERT_TRUE(metrics.Append("job", points).ok());
  ASSERT_TRUE(metrics.Thin("job", 100).ok());
  const int64_t count = metrics.Count("job").value();
  EXPECT_LE(count, 115);
  EXPECT_GE(count, 80);
  const auto kept = metrics.Read("job", 0, 1000).value();
  EXPECT_EQ(kept.front().step, 1);
  EXPECT_EQ(kept.back().step, 1003);
  EXPECT_EQ(std::count_if(kept.begin(), kept.end(), [](const auto& p) { return p.is_eval != 0; }),
            5);
  EXPECT_TRUE(std::none_of(kept.begin(), kept.end(),
                           [](const auto& p) { return p.attempt == 1 && p.step > 500; }));
  ASSERT_TRUE(metrics.Thin("job", 100).ok());
  EXPECT_EQ(metrics.Count("job").value(), count);
  ASSERT_TRUE(metrics.Append("job", {Point(2, 1003), Point(2, 1004)}).ok());
  EXPECT_EQ(metrics.Count("job").value(), count + 1);
}

TEST_F(LogsTest, MetricsAreReadByIndex) {
  MetricLog metrics(dir_);
  ASSERT_TRUE(metrics.Append("job", {Point(1, 1), Point(1, 2), Point(1, 2, true)}).ok());
  ASSERT_TRUE(metrics.Append("job", {Point(1, 3)}).ok());
  EXPECT_EQ(metrics.Count("job").value(), 4);
  const auto points = metrics.Read("job", 2, 10).value();
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].is_eval, 1);
  EXPECT_EQ(points[1].step, 3);
  EXPECT_EQ(points[1].loss, 0.25);
  EXPECT_TRUE(metrics.Read("job", 4, 10)->empty());
}

TEST_F(LogsTest, ValuesOfAValidationAreRecordsThatStayWithIt) {
  MetricLog metrics(dir_);
  std::vector<MetricPoint> points;
  for (int step = 1; step <= 600; ++step) {
    points.push_back(Point(1, step));
    if (step % 100 != 0) continue;
    points.push_back(Point(1, step, true));
    for (const char* name : {"val.rouge_l", "val.exact_match"}) {
      MetricPoint value = Point(1, step, true);
      value.is_eval = name[4] == 'r' ? 2 : 3;
      value.name = name;
      value.value = step + 0.125 * value.is_eval;
      points.push_back(value);
    }
  }
  ASSERT_TRUE(metrics.Append("job", points).ok());
  ASSERT_TRUE(metrics.Append("job", points).ok()) << "sent twice";
  ASSERT_EQ(metrics.Count("job").value(), 618);
  ASSERT_TRUE(metrics.Thin("job", 100).ok());
  EXPECT_LT(metrics.Count("job").value(), 150);
  std::map<std::string, int> kept;
  const auto read = metrics.Read("job", 0, 1000);
  for (const MetricPoint& point : read.value()) {
    if (point.name.empty()) continue;
    ++kept[point.name];
    EXPECT_EQ(point.value, static_cast<double>(point.step) + 0.125 * point.is_eval);
  }
  EXPECT_EQ(kept, (std::map<std::string, int>{{"val.exact_match", 6}, {"val.rouge_l", 6}}));
  const std::string longest(MetricLog::kMaxName, 'x');
  MetricPoint value = Point(1, 700, true);
  value.is_eval = 2;
  value.name = longest;
  EXPECT_EQ(DecodeMetric(EncodeMetric(value), "job")->name, longest);
  EXPECT_EQ(EncodeMetric(value).size(), static_cast<size_t>(MetricLog::kRecordBytes));
}

TEST_F(LogsTest, PreferencesComeBackFromRecordsOfTheSameSize) {
  MetricPoint step = Point(2, 7);
  step.preference = {.rewards_chosen = 0.5f,
                     .rewards_rejected = -0.25f,
                     .rewards_accuracies = 0.75f,
                     .logps_chosen = -31.5f,
                     .logps_rejected = -40.0f,
                     .kl = 0.125f};
  step.lr = 5e-6;
  step.tokens = 1'000'000;
  step.epoch = 1.25;
  step.grad_norm = 0.5;
  MetricPoint eval = step;
  eval.is_eval = 1;
  eval.val_loss = 0.6875;
  MetricLog log(dir_ + "/metrics");
  ASSERT_TRUE(log.Append("job-a", {Point(1, 1), step, eval}).ok());
  const auto points = log.Read("job-a", 0, 10);
  ASSERT_TRUE(points.ok());
  ASSERT_EQ(points->size(), 3u);
  EXPECT_FALSE((*points)[0].preference);
  for (const MetricPoint& point : {(*points)[1], (*points)[2]}) {
    ASSERT_TRUE(point.preference);
    EXPECT_EQ(point.attempt, 2);
    EXPECT_EQ(point.step, 7);
    EXPECT_EQ(point.lr, 5e-6);
    EXPECT_EQ(point.tokens, 1'000'000);
    EXPECT_EQ(point.epoch, 1.25);
    EXPECT_EQ(point.grad_norm, 0.5);
    EXPECT_EQ(point.preference->rewards_chosen, 0.5f);
    EXPECT_EQ(point.preference->rewards_rejected, -0.25f);
    EXPECT_EQ(point.preference->rewards_accuracies, 0.75f);
    EXPECT_EQ(point.preference->logps_chosen, -31.5f);
    EXPECT_EQ(point.preference->logps_rejected, -40.0f);
    EXPECT_EQ(point.preference->kl, 0.125f);
  }
  EXPECT_EQ((*points)[1].loss, step.loss);
  EXPECT_EQ((*points)[2].val_loss, 0.6875);
}

TEST_F(LogsTest, WhatAxesCostComesBackFromRecordsOfTheSameSize) {
  MetricPoint step = Point(2, 7);
  step.total_steps = 40;
  step.tokens = 1'000'000;
  step.gpu_memory_bytes = 80'000'000'000;
  step.time_us = 1'700'000'000'123'456;
  step.lr = 0.5;
  step.grad_norm = 0.25;
  step.tokens_per_second = 640;
  step.mfu = 0.5;
  step.of_limit = 0.75f;
  step.step_seconds = 1.5;
  step.epoch = 1.25;
  step.traffic = {{"shard", 0.125, 41.5}, {"replicate", 1, 0.00125}, {"world", 0, 0}};
  MetricPoint preferring = step;
  preferring.step = 8;
  preferring.preference = {.rewards_chosen = 0.5f, .kl = 0.125f};
  MetricLog log(dir_ + "/metrics");
  ASSERT_TRUE(log.Append("job-a", {Point(1, 1), step, preferring, Point(2, 9)}).ok());
  EXPECT_EQ(EncodeMetric(preferring).size(), static_cast<size_t>(MetricLog::kRecordBytes));
  const auto points = log.Read("job-a", 0, 10);
  ASSERT_TRUE(points.ok());
  ASSERT_EQ(points->size(), 4u);
  EXPECT_TRUE((*points)[0].traffic.empty());
  EXPECT_TRUE((*points)[3].traffic.empty());
  EXPECT_FALSE((*points)[1].preference);
  ASSERT_TRUE((*points)[2].preference);
  EXPECT_EQ((*points)[2].preference->kl, 0.125f);
  for (const MetricPoint& point : {(*points)[1], (*points)[2]}) {
    EXPECT_EQ(point.attempt, 2);
    EXPECT_EQ(point.loss, step.loss) << "to the last bit";
    EXPECT_EQ(point.total_steps, 40);
    EXPECT_EQ(point.tokens, 1'000'000);
    EXPECT_EQ(point.gpu_memory_bytes, 80'000'000'000);
    EXPECT_EQ(point.time_us, step.time_us);
    EXPECT_EQ(point.lr, 0.5);
    EXPECT_EQ(point.grad_norm, 0.25);
    EXPECT_EQ(point.tokens_per_second, 640);
    EXPECT_EQ(point.mfu, 0.5);
    EXPECT_EQ(point.of_limit, 0.75f);
    EXPECT_EQ(point.step_seconds, 1.5);
    EXPECT_EQ(point.epoch, 1.25);
    ASSERT_EQ(point.traffic.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(point.traffic[i].axis, step.traffic[i].axis);
      EXPECT_NEAR(point.traffic[i].exposed_share, step.traffic[i].exposed_share, 1e-5);
      EXPECT_NEAR(point.traffic[i].gigabytes_per_second, step.traffic[i].gigabytes_per_second,
                  0.004 * step.traffic[i].gigabytes_per_second);
    }
  }
}

TEST_F(LogsTest, OfAxesThatARecordCannotNameTheOthersStay) {
  MetricPoint step = Point(1, 1);
  step.traffic = {{"of a later version", 0.5, 1}, {"tensor", 7, 1e300}};
  for (const char* axis : {"pipeline", "context", "expert", "world"}) {
    step.traffic.push_back({axis, -1, std::numeric_limits<double>::quiet_NaN()});
  }
  const auto point = DecodeMetric(EncodeMetric(step), "job-a");
  ASSERT_TRUE(point.ok());
  ASSERT_EQ(point->traffic.size(), 4u);
  EXPECT_EQ(point->traffic[0].axis, "tensor");
  EXPECT_EQ(point->traffic[0].exposed_share, 1);
  EXPECT_EQ(point->traffic[3].axis, "expert");
  EXPECT_EQ(point->traffic[3].exposed_share, 0);
}

TEST_F(LogsTest, GroupsOverSeveralAxesKeepTheirNames) {
  MetricPoint step = Point(1, 1);
  const char* const axes[] = {"context_nodes", "shard+context", "replicate+shard+tensor",
                              "shard+far"};
  for (const char* axis : axes) step.traffic.push_back({axis, 0.5, 1});
  const auto point = DecodeMetric(EncodeMetric(step), "job-a");
  ASSERT_TRUE(point.ok());
  ASSERT_EQ(point->traffic.size(), 3u) << "one is not known";
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(point->traffic[i].axis, axes[i]);
}

TEST_F(LogsTest, PointsSentTwiceAreStoredOnce) {
  MetricLog metrics(dir_);
  ASSERT_TRUE(metrics.Append("job", {Point(1, 1), Point(1, 2)}).ok());
  ASSERT_TRUE(metrics.Append("job", {Point(1, 1), Point(1, 2), Point(1, 3)}).ok());
  EXPECT_EQ(metrics.Count("job").value(), 3);
  ASSERT_TRUE(metrics.Append("job", {Point(2, 1)}).ok());
  EXPECT_EQ(metrics.Count("job").value(), 4);
}

TEST_F(LogsTest, ARecordCutByAPowerFailureIsDropped) {
  ASSERT_TRUE(MetricLog(dir_).Append("job", {Point(1, 1), Point(1, 2)}).ok());
  const std::string segment = dir_ + "/job/00000000000000000000.seg";
  {
    io::AppendFile file = io::AppendFile::Open(segment).value();
    ASSERT_TRUE(file.Truncate(MetricLog::kRecordBytes + 17).ok());
  }
  MetricLog metrics(dir_);
  EXPECT_EQ(metrics.Count("job").value(), 1);
  ASSERT_TRUE(metrics.Append("job", {Point(1, 2)}).ok());
  EXPECT_EQ(metrics.Read("job", 0, 10)->back().step, 2);
}

}  // namespace
}  // namespace sft::server
