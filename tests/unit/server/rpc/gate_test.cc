#include <gtest/gtest.h>

#include <optional>

#include "server/rpc/principal.h"

namespace sft::server {
namespace {

TEST(GateTest, ItIsQuietSomeTimeAfterTheLastCallHasEnded) {
  FakeClock clock;
  const auto store = Store::Open({.path = ":memory:", .own_thread = false}).value();
  const auto access = Access::Load(*store, clock, std::nullopt).value();
  Gate gate(*access, *store, clock, /*open=*/true);
  clock.Advance(std::chrono::seconds(10));
  EXPECT_TRUE(gate.Quiet());
  gate.Count(1);
  gate.Count(1);
  clock.Advance(std::chrono::seconds(10));
  gate.Count(-1);
  clock.Advance(std::chrono::seconds(10));
  EXPECT_FALSE(gate.Quiet()) << "one is under way";
  gate.Count(-1);
  EXPECT_FALSE(gate.Quiet()) << "it has just ended";
  clock.Advance(std::chrono::seconds(10));
  EXPECT_TRUE(gate.Quiet());
}

}  // namespace
}  // namespace sft::server
