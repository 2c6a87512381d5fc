#include "server/door/gate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>

namespace sft::server {
namespace {

TEST(GateTest, StreamsAreLimitedForEachCallerAndForAllTogether) {
  FakeClock clock;
  const auto store = Store::Open({.path = ":memory:", .own_thread = false}).value();
  const auto access = Access::Load(*store, clock, std::nullopt).value();
  Gate gate(*access, *store, clock, /*open=*/true);
  const auto begin = [&](const std::string& who) {
    return gate.BeginStream(who, Gate::kMaxStreamsOfOne, "JobService.WatchJob");
  };
  for (int i = 0; i < Gate::kMaxStreamsOfOne; ++i) ASSERT_TRUE(begin("ann").ok());
  const absl::Status refused = begin("ann");
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_NE(Message(refused).find("100 of them of ann: end one"), std::string_view::npos)
      << refused;
  EXPECT_TRUE(begin("bob").ok()) << "another caller has streams of his own";
  gate.EndStream("ann", "JobService.WatchJob");
  EXPECT_TRUE(begin("ann").ok());
  int others = 0;
  while (gate.BeginStream("local", Gate::kMaxStreams, "JobService.ReadLog").ok()) ++others;
  EXPECT_EQ(others, Gate::kMaxStreams - Gate::kMaxStreamsOfOne - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(begin("cid")));
  const std::map<std::string, int> by_kind = {{"JobService.ReadLog", others},
                                              {"JobService.WatchJob", Gate::kMaxStreamsOfOne + 1}};
  EXPECT_EQ(gate.streams(), by_kind);
}

TEST(GateTest, CallsOfAnybodyAreFewAndOfOneSubscriberFewer) {
  FakeClock clock;
  const auto store = Store::Open({.path = ":memory:", .own_thread = false}).value();
  const auto access = Access::Load(*store, clock, std::nullopt).value();
  Gate gate(*access, *store, clock, /*open=*/false);
  std::vector<std::shared_ptr<void>> places;
  for (int i = 0; i < Gate::kMostOfSubscriber; ++i) {
    places.push_back(gate.EnterAsAnybody("ipv4:10.0.0.3:1").value());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(gate.EnterAsAnybody("ipv4:10.0.0.3:2").status()));
  EXPECT_TRUE(gate.EnterAsAnybody("ipv4:10.0.0.4:2").ok());
  places.pop_back();
  places.push_back(gate.EnterAsAnybody("ipv4:10.0.0.3:2").value());
  // Those of this machine may be a proxy's.
  while (places.size() < Gate::kMostOfAnybody) {
    const char* const peer = places.size() % 2 == 0 ? "ipv4:127.0.0.1:5" : "ipv6:%5B::1%5D:5";
    places.push_back(gate.EnterAsAnybody(peer).value());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(gate.EnterAsAnybody("ipv4:127.0.0.1:5").status()));
  EXPECT_TRUE(absl::IsResourceExhausted(gate.EnterAsAnybody("ipv6:[2001:db8::1]:5").status()));
  places.clear();
  EXPECT_TRUE(gate.EnterAsAnybody("ipv6:[2001:db8::1]:5").ok());
}

TEST(GateTest, TheAddressesOfOneNetworkOfIpv6HaveTheCallsOfOneCaller) {
  FakeClock clock;
  const auto store = Store::Open({.path = ":memory:", .own_thread = false}).value();
  const auto access = Access::Load(*store, clock, std::nullopt).value();
  Gate gate(*access, *store, clock, /*open=*/false);
  std::vector<std::shared_ptr<void>> places;
  for (int i = 0; i < Gate::kMostOfSubscriber; ++i) {
    // As gRPC and as the HTTP server write it.
    const std::string peer = i % 2 == 0 ? "ipv6:%5B2001:db8::{}%5D:5" : "ipv6:[2001:db8::{}]:5";
    places.push_back(gate.EnterAsAnybody(fmt::format(fmt::runtime(peer), i)).value());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(gate.EnterAsAnybody("ipv6:[2001:db8::ffff]:5").status()));
  EXPECT_TRUE(gate.EnterAsAnybody("ipv6:[2001:db8:0:1::1]:5").ok());
}

}  // namespace
}  // namespace sft::server
