#include "common/base/clock.h"

#include <gtest/gtest.h>

namespace sft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(FakeClockTest, SleepingAdvancesBothClocks) {
  FakeClock clock;
  const WallTime wall = clock.Wall();
  const MonoTime mono = clock.Mono();
  clock.Sleep(seconds(5));
  EXPECT_EQ(clock.Wall() - wall, seconds(5));
  EXPECT_EQ(clock.Mono() - mono, seconds(5));
}

TEST(FakeClockTest, TheWallClockJumpsAlone) {
  FakeClock clock;
  const WallTime wall = clock.Wall();
  const MonoTime mono = clock.Mono();
  clock.JumpWall(seconds(-3600));
  EXPECT_EQ(clock.Wall() - wall, seconds(-3600));
  EXPECT_EQ(clock.Mono(), mono);
}

TEST(RealClockTest, MonotonicTimeNeverGoesBack) {
  const MonoTime first = Clock::Real().Mono();
  EXPECT_GE(Clock::Real().Mono(), first);
}

TEST(WallTimeTest, MicrosecondsComeBackEqual) {
  EXPECT_EQ(UnixMicros(FromUnixMicros(1'700'000'000'123'456)), 1'700'000'000'123'456);
  EXPECT_EQ(UnixMicros(FromUnixMicros(0)), 0);
}

TEST(WallTimeTest, TimesOutsideTheRangeOfNanosecondsAreRejected) {
  EXPECT_TRUE(ParseUtc("2261-12-31T23:59:59Z").has_value());
  EXPECT_FALSE(ParseUtc("2999-01-01T00:00:00Z").has_value());
  EXPECT_FALSE(ParseUtc("1500-01-01T00:00:00Z").has_value());
}

TEST(WallTimeTest, UtcIsWrittenWithMilliseconds) {
  EXPECT_EQ(FormatUtc(FromUnixMicros(1'769'862'896'789'999)), "2026-01-31T12:34:56.789Z");
  EXPECT_EQ(FormatUtc(WallTime(milliseconds(0))), "1970-01-01T00:00:00.000Z");
}

}  // namespace
}  // namespace sft
