#include <gtest/gtest.h>

#include "common/io/file.h"
#include "server/blob/log_store.h"
#include "server/blob/metric_log.h"
#include "server/blob/segment_file.h"

namespace sft::server {
namespace {

class LogsTest : public testing::Test {
 protected:
  LogsTest() : dir_(io::MakeTempDir("logs-test").value()) {}
  ~LogsTest() override { (void)io::RemoveAll(dir_); }
  const std::string dir_;
};

MetricPoint Point(int64_t attempt, int64_t step, bool eval = false) {
  MetricPoint point;
  point.attempt = attempt;
  point.step = step;
  point.is_eval = eval ? 1 : 0;
  point.loss = 1.0 / static_cast<double>(step + 1);
  return point;
}

TEST_F(LogsTest, AppendIsIdempotentByOffset) {
  LogStore logs(dir_);
  EXPECT_EQ(logs.Append("a/rank-0", 0, "hello ", false).value(), 6);
  EXPECT_EQ(logs.Append("a/rank-0", 0, "hello ", false).value(), 6);
  EXPECT_EQ(logs.Append("a/rank-0", 3, "lo world", true).value(), 11);
  EXPECT_EQ(logs.Read("a/rank-0", 0, 100).value(), "hello world");
}

TEST_F(LogsTest, AGapIsNotWrittenAndAnsweredWithTheOffsetItWants) {
  LogStore logs(dir_);
  ASSERT_TRUE(logs.Append("a/rank-0", 0, "abc", false).ok());
  EXPECT_EQ(logs.Append("a/rank-0", 10, "xyz", false).value(), 3);
  EXPECT_EQ(logs.Size("a/rank-0").value(), 3);
}

TEST_F(LogsTest, ALogContinuesInAnotherProcess) {
  ASSERT_TRUE(LogStore(dir_).Append("a/rank-0", 0, "one\n", true).ok());
  LogStore logs(dir_);
  EXPECT_EQ(logs.Append("a/rank-0", 4, "two\n", true).value(), 8);
  EXPECT_EQ(logs.Read("a/rank-0", 2, 100).value(), "e\ntwo\n");
}

TEST_F(LogsTest, MoreStreamsThanAreKeptOpenStayWhole) {
  LogStore logs(dir_);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < static_cast<int>(LogStore::kMaxOpen) + 8; ++i) {
      ASSERT_EQ(logs.Append(LogStore::RankStream("a", i), round, "x", false).value(), round + 1);
    }
  }
}

TEST_F(LogsTest, TailStartsAtALine) {
  LogStore logs(dir_);
  ASSERT_TRUE(logs.Append("s", 0, "one\ntwo\nthree\n", false).ok());
  EXPECT_EQ(logs.TailOffset("s", 0).value(), 14) << "nothing of what is written already";
  EXPECT_EQ(logs.TailOffset("s", 1).value(), 8);
  EXPECT_EQ(logs.TailOffset("s", 2).value(), 4);
  EXPECT_EQ(logs.TailOffset("s", 9).value(), 0);
  EXPECT_EQ(logs.TailOffset("empty", 3).value(), 0);
}

TEST_F(LogsTest, AStreamGoesOverSegments) {
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
