#include "server/core/change_hub.h"

#include <gtest/gtest.h>

namespace sft::server {
namespace {

TEST(ChangeHubTest, AChangeWakesThoseWhoFollowItsKeyAndNobodyElse) {
  ChangeHub hub;
  int of_job = 0, of_log = 0, of_both = 0;
  const auto job = hub.Subscribe({"job-1"}, [&] { ++of_job; }).value();
  const auto log = hub.Subscribe({"log/1"}, [&] { ++of_log; }).value();
  const auto both = hub.Subscribe({"job-1", "log/1"}, [&] { ++of_both; }).value();
  hub.Bump("job-1");
  hub.Bump("job-2");
  EXPECT_EQ(of_job, 1);
  EXPECT_EQ(of_log, 0);
  EXPECT_EQ(of_both, 1);
  hub.Bump("log/1");
  EXPECT_EQ(of_job, 1);
  EXPECT_EQ(of_log, 1);
  EXPECT_EQ(of_both, 2);
  hub.BumpAll();
  EXPECT_EQ(of_job, 2);
  EXPECT_EQ(of_log, 2);
  EXPECT_EQ(of_both, 3);
}

TEST(ChangeHubTest, WhoTakesOtherKeysIsWokenForThoseAndKeepsItsPlace) {
  ChangeHub hub;
  int woken = 0;
  const auto mine = hub.Subscribe({"a", "b"}, [&] { ++woken; }).value();
  std::vector<std::unique_ptr<ChangeHub::Subscription>> others;
  while (true) {
    auto other = hub.Subscribe({"b"}, [] {});
    if (!other.ok()) break;
    others.push_back(*std::move(other));
  }
  mine->SetKeys({"b", "c"});
  hub.Bump("a");
  EXPECT_EQ(woken, 0);
  hub.Bump("b");
  hub.Bump("c");
  EXPECT_EQ(woken, 2);
}

TEST(ChangeHubTest, WhoHasLeftIsNotWoken) {
  ChangeHub hub;
  int woken = 0;
  auto gone = hub.Subscribe({"a", "a"}, [&] { ++woken; }).value();
  gone.reset();
  hub.Bump("a");
  hub.BumpAll();
  EXPECT_EQ(woken, 0);
}

TEST(ChangeHubTest, ShutdownWakesAll) {
  ChangeHub hub;
  int woken = 0;
  const auto mine = hub.Subscribe({"a"}, [&] { ++woken; }).value();
  EXPECT_FALSE(hub.stopped());
  hub.Shutdown();
  EXPECT_TRUE(hub.stopped());
  EXPECT_EQ(woken, 1);
}

TEST(ChangeHubTest, SubscriptionsAreLimitedAndGivenBack) {
  ChangeHub hub;
  std::vector<std::unique_ptr<ChangeHub::Subscription>> all;
  for (int i = 0; i < ChangeHub::kMaxSubscriptions; ++i) {
    all.push_back(hub.Subscribe({"x"}, [] {}).value());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(hub.Subscribe({"x"}, [] {}).status()));
  all.pop_back();
  EXPECT_TRUE(hub.Subscribe({"y"}, [] {}).ok());
}

}  // namespace
}  // namespace sft::server
