#include <gtest/gtest.h>

#include "client/base/exit_codes.h"
#include "common/base/json.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

class WebhookCommandTest : public ::testing::Test {
 protected:
  WebhookCommandTest() {
    server_.webhook.set_id("hook-1");
    server_.webhook.set_project("vision");
    server_.webhook.set_url("https://example.com/hook");
    server_.webhook.set_format(v1::Webhook::STANDARD);
    for (int i = 0; i < 5; ++i) {
      v1::WebhookDelivery& delivery = server_.deliveries.emplace_back();
      delivery.set_id("msg_" + std::to_string(i));
      delivery.set_type("job.failed");
      delivery.set_state(v1::WebhookDelivery::DELIVERED);
      delivery.set_tries(1);
      delivery.set_http_status(200);
    }
  }
  FakeServer server_;
};

TEST_F(WebhookCommandTest, AddPrintsTheSecretOnce) {
  const Outcome run = Sftctl(server_, {"webhook", "add", "https://example.com/hook", "--project",
                                       "vision", "--events", "job.failed,job.succeeded"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "hook-1\nwhsec_new\n");
  EXPECT_NE(run.err.find("not shown again"), std::string::npos);
  EXPECT_EQ(server_.webhook_request.url(), "https://example.com/hook");
  EXPECT_EQ(server_.webhook_request.project(), "vision");
  EXPECT_FALSE(server_.webhook_request.of_server());
  ASSERT_EQ(server_.webhook_request.events_size(), 2);
  EXPECT_EQ(server_.webhook_request.events(1), "job.succeeded");
  const Outcome slack = Sftctl(server_, {"webhook", "add", "https://hooks.slack.com/x", "--format",
                                         "slack", "--of-server", "--json"});
  EXPECT_EQ(slack.code, kSucceeded) << slack.err;
  EXPECT_TRUE(server_.webhook_request.of_server());
  EXPECT_EQ(server_.webhook_request.format(), v1::Webhook::SLACK);
  EXPECT_EQ(ParseJson(slack.out).at("secret"), "");
  const Outcome openai =
      Sftctl(server_, {"webhook", "add", "https://example.com/hook", "--format", "openai"});
  EXPECT_EQ(openai.code, kSucceeded) << openai.err;
  EXPECT_EQ(server_.webhook_request.format(), v1::Webhook::OPENAI);
  EXPECT_EQ(Sftctl(server_, {"webhook", "add", "https://x", "--format", "teams"}).code, kUsage);
}

TEST_F(WebhookCommandTest, AListSaysWhichIsOff) {
  EXPECT_NE(Sftctl(server_, {"webhook", "list"}).out.find(" on"), std::string::npos);
  server_.webhook.mutable_off_time()->set_seconds(1'700'000'000);
  server_.webhook.set_off_reason("the receiver answered 410: it is gone");
  const Outcome run = Sftctl(server_, {"webhook", "list"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_NE(run.out.find("hook-1"), std::string::npos);
  EXPECT_NE(run.out.find("off: the receiver answered 410"), std::string::npos) << run.out;
  const auto json = ParseJson(Sftctl(server_, {"webhook", "list", "--json"}).out);
  EXPECT_EQ(json.at(0).at("off_reason"), "the receiver answered 410: it is gone");
  EXPECT_EQ(json.at(0).at("last_delivery_time"), nullptr);
}

TEST_F(WebhookCommandTest, DeliveriesAreListedOverPages) {
  const auto all = ParseJson(Sftctl(server_, {"webhook", "deliveries", "hook-1", "--json"}).out);
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(all.at(4).at("id"), "msg_4");
  const auto three =
      ParseJson(Sftctl(server_, {"webhook", "deliveries", "hook-1", "--limit", "3", "--json"}).out);
  EXPECT_EQ(three.size(), 3u);
}

TEST_F(WebhookCommandTest, ATestSaysWhatCameOfIt) {
  server_.deliveries.front().set_state(v1::WebhookDelivery::WAITING);
  server_.deliveries.front().set_tries(0);
  Outcome run = Sftctl(server_, {"webhook", "test", "hook-1"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_NE(run.out.find("delivered"), std::string::npos) << run.out;
  server_.deliveries.front().set_state(v1::WebhookDelivery::FAILED);
  server_.deliveries.front().set_error("it answered with HTTP status 410");
  run = Sftctl(server_, {"webhook", "test", "hook-1"});
  EXPECT_EQ(run.code, kUnreachable);
  EXPECT_NE(run.out.find("HTTP status 410"), std::string::npos) << run.out;
}

TEST_F(WebhookCommandTest, ATestOfAWebhookThatRestsForLongIsNotWaitedFor) {
  v1::WebhookDelivery& test = server_.deliveries.front();
  test.set_state(v1::WebhookDelivery::WAITING);
  test.set_tries(0);
  test.mutable_create_time()->set_seconds(1'800'000'000);
  test.mutable_next_try_time()->set_seconds(1'800'000'200);
  const Outcome run = Sftctl(server_, {"webhook", "test", "hook-1"});
  EXPECT_EQ(run.code, kUnreachable);
  EXPECT_NE(run.err.find("not sent before 2027-01-15T08:03:20"), std::string::npos) << run.err;
  EXPECT_NE(run.out.find("waiting"), std::string::npos) << run.out;
}

TEST_F(WebhookCommandTest, AReplayNamesADeliveryOrAllThatFailed) {
  Outcome run = Sftctl(server_, {"webhook", "replay", "hook-1", "msg_2"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(run.out, "3 to be sent again\n");
  EXPECT_EQ(server_.replay_request.delivery(), "msg_2");
  EXPECT_FALSE(server_.replay_request.has_since());
  run = Sftctl(server_, {"webhook", "replay", "hook-1", "--failed", "--since", "2h"});
  EXPECT_EQ(run.code, kSucceeded) << run.err;
  EXPECT_EQ(server_.replay_request.delivery(), "");
  EXPECT_TRUE(server_.replay_request.has_since());
  EXPECT_EQ(Sftctl(server_, {"webhook", "replay", "hook-1"}).code, kUsage);
  EXPECT_EQ(Sftctl(server_, {"webhook", "replay", "hook-1", "msg_2", "--failed"}).code, kUsage);
}

}  // namespace
}  // namespace sft::client
