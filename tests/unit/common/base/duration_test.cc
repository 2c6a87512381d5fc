#include "common/base/duration.h"

#include <gtest/gtest.h>

namespace sft {
namespace {

TEST(DurationTest, ParsesANumberWithOrWithoutAUnit) {
  EXPECT_EQ(ParseDuration("90"), std::chrono::seconds(90));
  EXPECT_EQ(ParseDuration("90s"), std::chrono::seconds(90));
  EXPECT_EQ(ParseDuration("15m"), std::chrono::minutes(15));
  EXPECT_EQ(ParseDuration("2h"), std::chrono::hours(2));
  EXPECT_EQ(ParseDuration("1d"), std::chrono::hours(24));
}

TEST(DurationTest, FormatsInTheLargestUnitThatNeedsNoFraction) {
  using std::chrono::minutes;
  EXPECT_EQ(DurationText(minutes(0)), "0s");
  EXPECT_EQ(DurationText(std::chrono::milliseconds(90'900)), "90s");
  EXPECT_EQ(DurationText(minutes(15)), "15m");
  EXPECT_EQ(DurationText(minutes(90)), "90m");
  EXPECT_EQ(DurationText(minutes(120)), "2h");
  EXPECT_EQ(DurationText(std::chrono::hours(48)), "48h");
}

TEST(DurationTest, RejectsAnythingElse) {
  for (const char* text : {"", "m", "1w", "-5s", "1.5h", "5 m", "9999999999s", "5mm"}) {
    EXPECT_FALSE(ParseDuration(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace sft
