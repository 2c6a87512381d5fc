#include "server/core/change_hub.h"

#include <thread>

#include <gtest/gtest.h>

namespace sft::server {
namespace {

constexpr std::chrono::hours kForever{1};

TEST(ChangeHubTest, AChangeBetweenLookAndWaitIsNotLost) {
  ChangeHub hub;
  auto subscription = hub.Subscribe("job-1").value();
  hub.Bump("job-1");
  EXPECT_TRUE(subscription->Wait(kForever));
}

TEST(ChangeHubTest, AWaitEndsWhenAnotherThreadBumps) {
  ChangeHub hub;
  auto subscription = hub.Subscribe("job-1").value();
  std::thread other([&] { hub.Bump("job-1"); });
  EXPECT_TRUE(subscription->Wait(kForever));
  other.join();
}

TEST(ChangeHubTest, ShutdownEndsWaitsNowAndLater) {
  ChangeHub hub;
  auto subscription = hub.Subscribe("job-1").value();
  hub.Shutdown();
  EXPECT_FALSE(subscription->Wait(kForever));
  EXPECT_FALSE(subscription->Wait(kForever));
}

TEST(ChangeHubTest, SubscriptionsAreLimitedAndGivenBack) {
  ChangeHub hub;
  std::vector<std::unique_ptr<ChangeHub::Subscription>> all;
  for (int i = 0; i < ChangeHub::kMaxSubscriptions; ++i) all.push_back(hub.Subscribe("x").value());
  EXPECT_TRUE(absl::IsResourceExhausted(hub.Subscribe("x").status()));
  all.pop_back();
  EXPECT_TRUE(hub.Subscribe("y").ok());
}

}  // namespace
}  // namespace sft::server
