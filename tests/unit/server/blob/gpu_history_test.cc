#include "server/blob/gpu_history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/io/file.h"

namespace sft::server {
namespace {

constexpr int64_t kSecond = 1'000'000, kMinute = 60 * kSecond, kHour = 60 * kMinute,
                  kDay = 24 * kHour;
constexpr int64_t kNow = 20'000 * kDay + 12 * kHour;

class GpuHistoryTest : public testing::Test {
 protected:
  GpuHistoryTest() : dir_(io::MakeTempDir("gpu-history-test").value()) {}
  ~GpuHistoryTest() override { (void)io::RemoveAll(dir_); }

  // "0: +0s 10MB 50% 300W 60C; 1: ..."; times since kNow.
  static std::string Read(GpuHistory& history, int64_t begin_us, int64_t now_us, int64_t step_us) {
    const auto gpus = history.Read("a", begin_us, now_us, step_us);
    EXPECT_TRUE(gpus.ok()) << gpus.status();
    std::string text;
    for (const auto& [slot, points] : *gpus) {
      text += fmt::format("{}{}:", text.empty() ? "" : "; ", slot);
      for (const auto& [time_us, use] : points) {
        text += fmt::format(" {:+}s {}MB {:.0f}% {:.0f}W {}C", (time_us - kNow) / kSecond,
                            use.memory_bytes / 1'000'000, use.utilization_percent, use.power_watts,
                            use.temperature_celsius);
      }
    }
    return text;
  }
  static std::vector<GpuReading> Use(int megabytes, float percent, float watts, int celsius) {
    return {{0, megabytes * int64_t{1'000'000}, percent, watts, celsius}};
  }
  size_t Files() {
    const auto days = io::ListDir(dir_ + "/a");
    return days.ok() ? days->size() : 0;
  }

  const std::string dir_;
};

TEST_F(GpuHistoryTest, KeepsReadingsOfTenSecondsAndTellsTheMostAndTheMeans) {
  GpuHistory history(dir_);
  history.Add("a", kNow, Use(10, 100, 300, 60));
  history.Add("a", kNow + 5 * kSecond, Use(99, 99, 99, 99));  // too early
  history.Add("a", kNow + 10 * kSecond, Use(30, 50, 200, 70));
  history.Add("a", kNow + 20 * kSecond, {{1, 5'000'000, 1, 0, 0}});
  history.Add("b", kNow, Use(7, 7, 7, 7));
  const int64_t now = kNow + 20 * kSecond;
  EXPECT_EQ(Read(history, kNow, now, 10 * kSecond),
            "0: +0s 10MB 100% 300W 60C +10s 30MB 50% 200W 70C; 1: +20s 5MB 1% 0W 0C");
  EXPECT_EQ(Read(history, kNow, now, kMinute), "0: +0s 30MB 75% 250W 70C; 1: +0s 5MB 1% 0W 0C");
  EXPECT_EQ(Read(history, kNow + kSecond, now, 10 * kSecond),
            "0: +10s 30MB 50% 200W 70C; 1: +20s 5MB 1% 0W 0C");
  EXPECT_EQ(history.Read("unknown", kNow, now, kMinute)->size(), 0u);
}

TEST_F(GpuHistoryTest, MinutesThatAreOverSurviveARestart) {
  {
    GpuHistory history(dir_);
    for (int i = 0; i < 18; ++i) history.Add("a", kNow + i * 10 * kSecond, Use(i, 50, 100, 40));
    ASSERT_TRUE(history.Flush(kNow + 175 * kSecond).ok());
    ASSERT_TRUE(history.Flush(kNow + 176 * kSecond).ok());  // nothing new
  }
  GpuHistory history(dir_);
  EXPECT_EQ(Read(history, kNow, kNow + kHour, kMinute),
            "0: +0s 5MB 50% 100W 40C +60s 11MB 50% 100W 40C")
      << "the third was not over";
  // A server that goes on in the same minute: its moments come behind the file's.
  history.Add("a", kNow + 190 * kSecond, Use(99, 10, 10, 10));
  ASSERT_TRUE(history.Flush(kNow + 260 * kSecond).ok());
  EXPECT_EQ(Read(history, kNow, kNow + kHour, kMinute),
            "0: +0s 5MB 50% 100W 40C +60s 11MB 50% 100W 40C +180s 99MB 10% 10W 10C");
}

TEST_F(GpuHistoryTest, MemoryHasTwoHoursAndFilesTheRest) {
  GpuHistory history(dir_);
  const int64_t end = kNow + 4 * kHour;
  for (int64_t at = kNow; at < end; at += 10 * kSecond) {
    history.Add("a", at, Use(1, at < kNow + kHour ? 80 : 20, 0, 0));
    if (at % kMinute != 0) continue;
    ASSERT_TRUE(history.Flush(at).ok());
  }
  EXPECT_EQ(Read(history, kNow, end, kHour),
            "0: +0s 1MB 80% 0W 0C +3600s 1MB 20% 0W 0C +7200s 1MB 20% 0W 0C +10800s 1MB 20% 0W 0C");
  const auto fine = history.Read("a", end - kHour, end, 10 * kSecond);
  EXPECT_EQ(fine->at(0).size(), 360u);
  const auto coarse = history.Read("a", kNow, kNow + kHour, 10 * kSecond);
  EXPECT_EQ(coarse->at(0).size(), 60u) << "minutes are left of it";
}

TEST_F(GpuHistoryTest, AWeekIsKeptAndATornRecordIsNoHarm) {
  GpuHistory history(dir_);
  for (int day = 0; day < 10; ++day) {
    history.Add("a", kNow + day * kDay, Use(day, 1, 1, 1));
    ASSERT_TRUE(history.Flush(kNow + day * kDay + kMinute).ok());
  }
  EXPECT_EQ(Files(), static_cast<size_t>(GpuHistory::kDaysKept + 1));
  {
    auto file = io::AppendFile::Open(fmt::format("{}/a/{}", dir_, (kNow + 9 * kDay) / kDay));
    ASSERT_TRUE(file.ok());
    EXPECT_EQ(file->size(), 24);
    ASSERT_TRUE(file->Append("torn").ok());
  }
  history.Add("a", kNow + 9 * kDay + 2 * kMinute, Use(50, 1, 1, 1));
  ASSERT_TRUE(history.Flush(kNow + 9 * kDay + 3 * kMinute).ok());
  GpuHistory after(dir_);
  EXPECT_EQ(Read(after, kNow + 9 * kDay, kNow + 10 * kDay, kDay / 2),
            fmt::format("0: +{}s 50MB 1% 1W 1C", 9 * kDay / kSecond));
  // A node that is heard of no more leaves nothing behind.
  ASSERT_TRUE(after.Flush(kNow + 30 * kDay).ok());
  EXPECT_EQ(io::ListDir(dir_)->size(), 0u);
}

}  // namespace
}  // namespace sft::server
