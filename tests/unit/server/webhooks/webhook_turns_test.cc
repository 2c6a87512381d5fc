#include <algorithm>
#include <thread>

#include "tests/unit/server/webhooks/webhook_fixture.h"

// Whose webhooks are sent next, and what keeps nobody else from being told.

namespace sft::server {
namespace {

class WebhookTurnsTest : public WebhookTest {
 protected:
  // A hook with so many tests that wait.
  std::string Waiting(const std::string& project, int tests) {
    const std::string hook = Add(project);
    Queue(hook, project, tests);
    return hook;
  }
  void Queue(const std::string& hook, const std::string& project, int tests) {
    for (int i = 0; i < tests; ++i) {
      ASSERT_TRUE(webhooks_.Test(project, hook, "ann").ok());
      clock_.Advance(std::chrono::milliseconds(1));
    }
  }
  // Receivers take as long as this to answer with the status.
  void AnswerAfter(const std::map<std::string, seconds>& took, int status = 200) {
    receiver_.answer = [=, this](const WebhookPost& post) {
      const auto slow = took.find(HookOf(post));
      clock_.Advance(slow == took.end() ? Nanos(std::chrono::milliseconds(50)) : slow->second);
      return HttpAnswer(status);
    };
  }
  static std::string HookOf(const WebhookPost& post) {
    return ParseJson(post.body).at("data").at("webhook").get<std::string>();
  }
  // The next one that is tried; empty: there is none.
  std::string Next() {
    const size_t before = receiver_.posts.size();
    EXPECT_TRUE(sender_.Step().ok());
    return receiver_.posts.size() == before ? "" : HookOf(receiver_.posts.back());
  }
  int TakenBy(const std::string& hook) const {
    return static_cast<int>(std::ranges::count(receiver_.posts, hook, HookOf));
  }
  absl::Status Execute(const char* sql) {
    return store_->Write([&](Database& db) { return db.Execute(sql); });
  }
};

TEST_F(WebhookTurnsTest, ProjectsTakeTurnsHoweverMuchWaitsForOne) {
  const std::string many = Waiting("alpha", 10), more = Waiting("alpha", 10);
  const std::string of_beta = Waiting("beta", 3), of_server = Add("");
  Queue(of_server, "", 3);
  AnswerAfter({});
  std::map<std::string, int> taken;
  for (int i = 0; i < 9; ++i) ++taken[Next()];
  EXPECT_EQ(taken[of_beta], 3);
  EXPECT_EQ(taken[of_server], 3);
  EXPECT_EQ(taken[many] + taken[more], 3);
  EXPECT_GE(taken[many], 1) << "and so do hooks of a project";
  EXPECT_GE(taken[more], 1);
}

TEST_F(WebhookTurnsTest, AReceiverThatAnswersLateKeepsOthersWaitingForOneTry) {
  std::vector<std::string> slow;
  for (int i = 0; i < 5; ++i) slow.push_back(Waiting("alpha", 10));
  std::map<std::string, seconds> took;
  for (const std::string& hook : slow) took[hook] = seconds(14);
  AnswerAfter(took);
  const std::string quick = Waiting("beta", 10);
  const MonoTime begin = clock_.Mono();
  while (TakenBy(quick) < 10) ASSERT_NE(Next(), "");
  EXPECT_LT(clock_.Mono() - begin, seconds(16));
}

TEST_F(WebhookTurnsTest, AHookThatTookLongRestsThoughItTakesAll) {
  const std::string hook = Waiting("alpha", 10);
  AnswerAfter({{hook, seconds(14)}});
  EXPECT_EQ(Next(), hook);
  EXPECT_EQ(Hook(hook, "alpha").failures(), 0);
  const auto waits = Deliveries(hook, "alpha").front();
  EXPECT_EQ(waits.next_try_time().seconds(), registry_->now_us() / 1'000'000 + 20 * 14)
      << "and is told when";
  clock_.Advance(seconds(20 * 14 - 1));
  EXPECT_EQ(Next(), "");
  clock_.Advance(seconds(1));
  EXPECT_EQ(Next(), hook);
  clock_.Advance(seconds(20 * 14));
  AnswerAfter({{hook, seconds(2)}});
  while (TakenBy(hook) < 10) ASSERT_EQ(Next(), hook) << "2 s are not long";
}

TEST_F(WebhookTurnsTest, AHookThatIsOnRestsOnThoughItIsTested) {
  const std::string hook = Waiting("alpha", 1);
  AnswerAfter({}, 500);
  EXPECT_EQ(Next(), hook);
  Queue(hook, "alpha", 1);
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(Hook(hook, "alpha").failures(), 1);
  v1::ReplayWebhookRequest request;
  request.set_id(hook);
  request.set_delivery(Deliveries(hook, "alpha").front().id());
  ASSERT_TRUE(webhooks_.Replay("alpha", request, "ann").ok());
  EXPECT_EQ(Next(), "");
  clock_.Advance(seconds(5));
  EXPECT_EQ(Next(), hook);
}

TEST_F(WebhookTurnsTest, TenTestsOfAHookWait) {
  const std::string hook = Waiting("alpha", Webhooks::kMaxTests);
  const absl::Status more = webhooks_.Test("alpha", hook, "ann").status();
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  EXPECT_NE(more.message().find("sftctl webhook deliveries " + hook), std::string_view::npos);
  EXPECT_TRUE(webhooks_.Test("alpha", Add("alpha"), "ann").ok());
  EXPECT_EQ(Send(), Webhooks::kMaxTests + 1);
  EXPECT_TRUE(webhooks_.Test("alpha", hook, "ann").ok());
}

TEST_F(WebhookTurnsTest, WhatCannotBeStoredIsSentOnce) {
  const std::string hook = Waiting("alpha", 2);
  AnswerAfter({});
  ASSERT_TRUE(Execute("CREATE TRIGGER full BEFORE UPDATE ON webhook_deliveries BEGIN SELECT "
                      "RAISE(ABORT, 'no space'); END")
                  .ok());
  const int64_t at = registry_->now_us();
  for (int i = 0; i < 60; ++i) {
    EXPECT_FALSE(sender_.Step().ok());
    clock_.Advance(seconds(1));
  }
  EXPECT_EQ(receiver_.posts.size(), 1u);
  ASSERT_TRUE(Execute("DROP TRIGGER full").ok());
  EXPECT_TRUE(sender_.Step().ok());
  EXPECT_EQ(receiver_.posts.size(), 1u) << "its outcome first";
  const auto all = Deliveries(hook, "alpha");
  EXPECT_EQ(all.back().state(), v1::WebhookDelivery::DELIVERED);
  EXPECT_EQ(all.back().last_try_time().seconds(), at / 1'000'000) << "as of then";
  EXPECT_EQ(Send(), 1);
  EXPECT_EQ(receiver_.posts.size(), 2u);
}

TEST_F(WebhookTurnsTest, ARotationThatMeetsARemovalLeavesNoFile) {
  for (int i = 0; i < 30; ++i) {
    const std::string hook = Add("alpha");
    std::thread rotates([&] { (void)webhooks_.Rotate("alpha", hook, "ann"); });
    std::thread removes([&] { EXPECT_TRUE(webhooks_.Remove("alpha", hook, "ann").ok()); });
    rotates.join();
    removes.join();
    EXPECT_FALSE(io::Exists(dir_ + "/webhooks/" + hook)) << i;
  }
}

TEST_F(WebhookTurnsTest, RotationsAtOnceKeepBothTheirSecrets) {
  for (int i = 0; i < 30; ++i) {
    const std::string hook = Add("alpha");
    std::vector<std::string> made(2);
    const auto rotate = [&](size_t which) {
      made[which] = webhooks_.Rotate("alpha", hook, "ann")->secret();
    };
    std::thread first(rotate, 0), second(rotate, 1);
    first.join();
    second.join();
    std::vector<std::string> kept = secrets_.Get(hook, registry_->now_us()).value();
    std::ranges::sort(kept);
    std::ranges::sort(made);
    EXPECT_EQ(kept, made) << i;
    ASSERT_TRUE(webhooks_.Remove("alpha", hook, "ann").ok());
  }
}

}  // namespace
}  // namespace sft::server
