#include "server/core/change_hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sft::server {
namespace {

TEST(ChangeHubTest, AChangeWakesThoseWhoFollowItsKeyAndNobodyElse) {
  ChangeHub hub;
  int of_job = 0, of_log = 0, of_both = 0;
  const auto job = hub.Subscribe({"job-1"}, [&] { ++of_job; }).value();
  const auto log = hub.Subscribe({"log/1"}, [&] { ++of_log; }).value();
  const auto both = hub.Subscribe({"job-1", "log/1"}, [&] { ++of_both; }).value();
  int of_user = 0, of_jobs = 0;
  const auto user = hub.Subscribe({ChangeHub::UserKey("ann")}, [&] { ++of_user; }).value();
  const auto jobs = hub.Subscribe({ChangeHub::kJobs}, [&] { ++of_jobs; }).value();
  hub.Bump("job-1");
  hub.Bump("job-2");
  EXPECT_EQ(of_job, 1);
  EXPECT_EQ(of_log, 0);
  EXPECT_EQ(of_both, 1);
  hub.Bump("log/1");
  EXPECT_EQ(of_job, 1);
  EXPECT_EQ(of_log, 1);
  EXPECT_EQ(of_both, 2);
  // A user is in no list.
  hub.Bump(ChangeHub::UserKey("ann"));
  EXPECT_EQ(of_job, 1);
  EXPECT_EQ(of_log, 1);
  EXPECT_EQ(of_both, 2);
  EXPECT_EQ(of_user, 1);
  EXPECT_EQ(of_jobs, 2) << "of the two jobs";
}

TEST(ChangeHubTest, TheListsTellWhatHasChangedSince) {
  using testing::ElementsAre;
  ChangeHub hub;
  int of_jobs = 0, of_nodes = 0;
  const auto jobs = hub.Subscribe({ChangeHub::kJobs}, [&] { ++of_jobs; }).value();
  const auto nodes = hub.Subscribe({ChangeHub::kNodes}, [&] { ++of_nodes; }).value();
  hub.Bump("job-1");
  hub.Bump("nodes/a");
  hub.Bump("log/1");
  hub.Bump("job-2");
  hub.Bump("job-1");
  EXPECT_EQ(of_jobs, 3);
  EXPECT_EQ(of_nodes, 1);
  const ChangeHub::Changes all = hub.ChangesSince(ChangeHub::kJobs, 0);
  EXPECT_THAT(all.keys, ElementsAre("job-2", "job-1"));  // in the order of their last change
  EXPECT_TRUE(all.complete);
  EXPECT_THAT(hub.ChangesSince(ChangeHub::kNodes, 0).keys, ElementsAre("nodes/a"));
  EXPECT_THAT(hub.ChangesSince(ChangeHub::kJobs, all.place).keys, ElementsAre());
  // Old ones are forgotten, and who asks for them is told so.
  for (int i = 0; i < 5000; ++i) hub.Bump("job-x" + std::to_string(i));
  EXPECT_FALSE(hub.ChangesSince(ChangeHub::kJobs, all.place).complete);
  const uint64_t now = hub.ChangesSince(ChangeHub::kJobs, 0).place;
  EXPECT_TRUE(hub.ChangesSince(ChangeHub::kJobs, now).complete);
  EXPECT_FALSE(hub.ChangesSince(ChangeHub::kJobs, now + 1).complete);  // of another life
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
  hub.Shutdown();
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
