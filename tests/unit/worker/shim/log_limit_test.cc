#include "worker/shim/log_limit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace sft::shim {
namespace {

constexpr int64_t kMiB = 1 << 20;

class LogLimitTest : public testing::Test {
 protected:
  LogLimitTest() : dir_(io::MakeTempDir("log-limit-test").value()) {}
  ~LogLimitTest() override { (void)io::RemoveAll(dir_); }

  void Write(int64_t bytes, char letter) {
    io::AppendFile log = io::AppendFile::Open(dir_ + "/rank-0.log").value();
    for (int64_t done = 0; done < bytes; done += kMiB) {
      ASSERT_TRUE(log.Append(std::string(kMiB, letter)).ok());
    }
  }
  int64_t OnDisk() const {
    struct stat info {};
    EXPECT_EQ(stat((dir_ + "/rank-0.log").c_str(), &info), 0);
    return static_cast<int64_t>(info.st_blocks) * 512;
  }
  channel::LogGap Gap() const {
    return channel::ParseLogGap(io::ReadFile(dir_ + "/rank-0.gap").value()).value();
  }

  const std::string dir_;
};

TEST_F(LogLimitTest, AFloodedLogKeepsItsBeginningAndItsNewestPart) {
  LogLimit limit = LogLimit::Make(dir_, "rank-0", 8 * kMiB).value();
  EXPECT_EQ(Gap().end, 0);
  Write(9 * kMiB, 'a');
  ASSERT_TRUE(limit.Check().ok());
  EXPECT_EQ(Gap().end, 0) << "a mebibyte of beginning and eight of the rest";
  for (char letter = 'b'; letter <= 'm'; ++letter) {
    Write(3 * kMiB, letter);
    ASSERT_TRUE(limit.Check().ok());
    EXPECT_LE(OnDisk(), 9 * kMiB + 64 * 1024);
  }
  const channel::LogGap gap = Gap();
  EXPECT_EQ(gap.begin, kMiB);
  const int64_t size = io::FileSize(dir_ + "/rank-0.log").value();
  EXPECT_EQ(size, 45 * kMiB) << "offsets stay";
  EXPECT_LE(size - gap.end, 8 * kMiB);
  EXPECT_GE(size - gap.end, 6 * kMiB);
  const std::string log = io::ReadFile(dir_ + "/rank-0.log").value();
  EXPECT_EQ(log.substr(0, kMiB), std::string(kMiB, 'a'));
  EXPECT_EQ(log.find('\0'), static_cast<size_t>(kMiB));
  EXPECT_EQ(log.find_last_of('\0'), static_cast<size_t>(gap.end) - 1);
}

TEST_F(LogLimitTest, WithoutALimitNothingIsTouched) {
  LogLimit limit = LogLimit::Make(dir_, "rank-0", 0).value();
  Write(4 * kMiB, 'a');
  ASSERT_TRUE(limit.Check().ok());
  EXPECT_FALSE(io::Exists(dir_ + "/rank-0.gap"));
}

TEST_F(LogLimitTest, AMissingLogIsOk) {
  LogLimit limit = LogLimit::Make(dir_, "rank-0", kMiB).value();
  EXPECT_TRUE(limit.Check().ok());
}

TEST(LogGapTest, IsReadAsItWasWritten) {
  const channel::LogGap gap{4096, 1'234'567'890'123};
  const std::string text = ToText(gap);
  EXPECT_EQ(text.size(), channel::ToText({}).size()) << "replaced in place";
  EXPECT_EQ(channel::ParseLogGap(text)->end, gap.end);
  for (const char* wrong : {"", "12", "x y", "20 10", "-1 5"}) {
    EXPECT_FALSE(channel::ParseLogGap(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace sft::shim
