#include "server/blob/tensorboard.h"

#include <gtest/gtest.h>

#include "common/io/file.h"
#include "server/blob/tf_events.h"

namespace sft::server {
namespace {

class TensorBoardTest : public testing::Test {
 protected:
  TensorBoardTest()
      : dir_(io::MakeTempDir("tensorboard-test").value()), metrics_(dir_ + "/metrics") {}
  ~TensorBoardTest() override { (void)io::RemoveAll(dir_); }

  void Add(int64_t attempt, int64_t first, int64_t last) {
    std::vector<MetricPoint> points;
    for (int64_t step = first; step <= last; ++step) {
      MetricPoint point;
      point.attempt = attempt;
      point.step = step;
      point.loss = static_cast<double>(step);
      point.time_us = (1000 * attempt + step) * 1'000'000;
      points.push_back(point);
    }
    ASSERT_TRUE(metrics_.Append("job", points).ok());
  }
  // A new object each time, as after a crash.
  std::vector<std::string> Update() {
    TensorBoard board(dir_ + "/tb");
    const absl::Status updated = board.Update("job", metrics_);
    EXPECT_TRUE(updated.ok()) << updated;
    return board.Files("job").value();
  }
  static int64_t Records(const std::string& path) {
    const std::string bytes = io::ReadFile(path).value();
    const tf_events::Scan scan = tf_events::ScanRecords(bytes);
    EXPECT_EQ(scan.bytes, static_cast<int64_t>(bytes.size())) << path;
    return scan.records;
  }

  const std::string dir_;
  MetricLog metrics_;
};

TEST_F(TensorBoardTest, ChecksumsAreCastagnolisMasked) {
  // RFC 3720 B.4: 32 bytes of zeros have 0x8a9136aa.
  const uint32_t crc = 0x8a9136aa;
  EXPECT_EQ(tf_events::MaskedCrc32c(std::string(32, '\0')),
            ((crc >> 15) | (crc << 17)) + 0xa282ead8);
}

TEST_F(TensorBoardTest, EveryPointIsOneRecordWhateverIsCutOff) {
  Add(1, 1, 20);
  std::vector<std::string> files = Update();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_NE(files[0].find("/job/events.out.tfevents.0000001001.attempt-0001"), std::string::npos);
  const std::string whole = io::ReadFile(files[0]).value();
  EXPECT_EQ(Records(files[0]), 21);
  // A crash may cut the file anywhere, or leave bytes that were never written.
  for (size_t cut = 0; cut < whole.size(); cut += 97) {
    ASSERT_TRUE(io::WriteFileAtomic(files[0], whole.substr(0, cut)).ok());
    EXPECT_EQ(Update(), files);
    EXPECT_EQ(io::ReadFile(files[0]).value(), whole) << "cut at " << cut;
    ASSERT_TRUE(io::WriteFileAtomic(files[0], whole.substr(0, cut) + std::string(50, '\0')).ok());
    Update();
    EXPECT_EQ(io::ReadFile(files[0]).value(), whole) << "zeros from " << cut;
  }
  Add(1, 21, 30);
  Update();
  EXPECT_EQ(Records(files[0]), 31);
  ASSERT_TRUE(io::RemoveAll(dir_ + "/tb").ok());
  Update();
  EXPECT_EQ(Records(files[0]), 31) << "made again from the metrics";
}

TEST_F(TensorBoardTest, ALaterAttemptHasItsOwnFileThatBeginsWithARestart) {
  Add(1, 1, 10);
  Update();
  Add(2, 6, 12);
  const std::vector<std::string> files = Update();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(Records(files[0]), 11);
  EXPECT_EQ(Records(files[1]), 2 + 7);
  const std::string restart = tf_events::Record(tf_events::Restart(2006, 6));
  EXPECT_EQ(io::ReadFile(files[1])->find(restart),
            tf_events::Record(tf_events::FileVersion(2006)).size());
  ASSERT_TRUE(io::RemoveAll(files[0]).ok());
  Update();
  EXPECT_EQ(Records(files[0]), 11);
  EXPECT_EQ(Records(files[1]), 9) << "not written twice";
}

TEST_F(TensorBoardTest, FilesOfAThinnedCurveAreMadeAgain) {
  Add(1, 1, 1000);
  Update();
  TensorBoard board(dir_ + "/tb");
  ASSERT_TRUE(board.Thin("job", metrics_, 100).ok());
  const int64_t points = metrics_.Count("job").value();
  EXPECT_LT(points, 110);
  EXPECT_EQ(Records(board.Files("job")->front()), points + 1);

  const std::string path = board.Files("job")->front();
  ASSERT_TRUE(io::WriteFileAtomic(path, "as it was").ok());
  ASSERT_TRUE(board.Thin("job", metrics_, 100).ok());
  EXPECT_EQ(io::ReadFile(path).value(), "as it was") << "what is thin is not written again";
}

TEST_F(TensorBoardTest, WhatAxesCostHasTagsOfItsOwn) {
  MetricPoint point;
  point.attempt = 1;
  point.step = 1;
  point.traffic = {{"shard", 0.25, 12.5}};
  ASSERT_TRUE(metrics_.Append("job", {point}).ok());
  const std::string bytes = io::ReadFile(Update().at(0)).value();
  EXPECT_NE(bytes.find("train/comm/shard/exposed_share"), bytes.npos);
  EXPECT_NE(bytes.find("train/comm/shard/GBps"), bytes.npos);
  EXPECT_NE(bytes.find("train/comm/exposed_share"), bytes.npos);
}

TEST_F(TensorBoardTest, AJobWithoutMetricsHasNoFiles) { EXPECT_TRUE(Update().empty()); }

}  // namespace
}  // namespace sft::server
