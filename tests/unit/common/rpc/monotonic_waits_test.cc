#include "common/rpc/monotonic_waits.h"

#include <gtest/gtest.h>

namespace sft::rpc {
namespace {

using std::chrono::milliseconds;

TEST(MonotonicWaitsTest, ADeadlineKeepsItsDistance) {
  const auto at = [](time_t seconds, long nanos, milliseconds wall, milliseconds mono) {
    const timespec moment = OnMonotonicClock({seconds, nanos}, WallTime(wall), MonoTime(mono));
    return std::pair(moment.tv_sec, moment.tv_nsec);
  };
  const milliseconds wall(1'000'900), mono(50'200);
  EXPECT_EQ(at(1'000, 900'000'000, wall, mono), std::pair(time_t{50}, 200'000'000L));
  EXPECT_EQ(at(1'003, 0, wall, mono), std::pair(time_t{52}, 300'000'000L));
  EXPECT_EQ(at(1'000, 950'000'000, milliseconds(1'000'000), milliseconds(50'100)),
            std::pair(time_t{51}, 50'000'000L));
  EXPECT_EQ(at(1, 0, wall, mono), std::pair(time_t{0}, 0L)) << "long past";
}

}  // namespace
}  // namespace sft::rpc
