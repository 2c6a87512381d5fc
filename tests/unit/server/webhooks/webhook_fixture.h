#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "server/store/tallies.h"
#include "server/webhooks/webhook_sender.h"
#include "server/webhooks/webhooks.h"
#include "tests/unit/server/gangs/life_fixture.h"

namespace sft::server {

// Answers as a test says, and keeps what came.
class FakeReceiver : public WebhookTransport {
 public:
  absl::StatusOr<WebhookAnswer> Post(const WebhookPost& post) override {
    posts.push_back(post);
    return answer(post);
  }
  std::vector<WebhookPost> posts;
  std::function<absl::StatusOr<WebhookAnswer>(const WebhookPost&)> answer = [](const WebhookPost&) {
    return WebhookAnswer{200, 0};
  };
};

inline std::string Header(const WebhookPost& post, const std::string& name) {
  for (const auto& [key, value] : post.headers) {
    if (key == name) return value;
  }
  return "";
}

inline AddressGuard PublicNames() {
  return AddressGuard::Make(
             {},
             [](const std::string& host) -> absl::StatusOr<std::vector<AddressGuard::Address>> {
               AddressGuard::Address address;
               address.bytes[10] = address.bytes[11] = 0xff;
               address.bytes[12] = host == "inside.example.com" ? 10 : 8;
               return std::vector{address};
             })
      .value();
}

// A fleet with webhooks, whose receivers a test plays.
class WebhookTest : public LifeTest {
 protected:
  using hours = std::chrono::hours;

  std::string Add(const std::string& project, const std::vector<std::string>& events = {},
                  v1::Webhook::Format format = v1::Webhook::STANDARD) {
    v1::AddWebhookRequest request;
    request.set_url("https://example.com/hook");
    request.set_format(format);
    for (const std::string& event : events) request.add_events(event);
    const auto added = webhooks_.Add(project, request, "ann");
    EXPECT_TRUE(added.ok()) << added.status();
    secret_ = added->secret();
    return added->webhook().id();
  }
  // Sends all that is due; how many tries that were.
  int Send() {
    for (int sent = 0;; ++sent) {
      const absl::StatusOr<bool> stepped = sender_.Step();
      EXPECT_TRUE(stepped.ok()) << stepped.status();
      if (!stepped.ok() || !*stepped) return sent;
    }
  }
  void Answer(int status, int64_t retry_after_s = 0) {
    receiver_.answer = [=](const WebhookPost&) { return HttpAnswer(status, retry_after_s); };
  }
  v1::Webhook Hook(const std::string& id, const std::string& project = "default") {
    const auto list = webhooks_.List(project);
    EXPECT_TRUE(list.ok()) << list.status();
    for (const v1::Webhook& hook : list->webhooks()) {
      if (hook.id() == id) return hook;
    }
    ADD_FAILURE() << "no " << id;
    return {};
  }
  std::vector<v1::WebhookDelivery> Deliveries(const std::string& id,
                                              const std::string& project = "default") {
    int64_t last = 0;
    const auto page = webhooks_.Deliveries(project, id, 0, 500, last);
    EXPECT_TRUE(page.ok()) << page.status();
    return {page->deliveries().begin(), page->deliveries().end()};
  }
  void Test(const std::string& id) { ASSERT_TRUE(webhooks_.Test("default", id, "ann").ok()); }
  std::vector<std::string> Types() const {
    std::vector<std::string> types;
    for (const WebhookPost& post : receiver_.posts) {
      types.push_back(ParseJson(post.body).at("type").get<std::string>());
    }
    return types;
  }
  // sft_webhook_deliveries_total
  std::map<std::string, double> Results() {
    std::map<std::string, double> results;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const auto tallies, store::AllTallies(db));
                      for (const store::TallyRecord& record : tallies) {
                        if (record.tally != store::Tally::kWebhookDeliveries) continue;
                        results[record.label] = record.value;
                      }
                      return absl::OkStatus();
                    })
                    .ok());
    return results;
  }

  const WebhookSecrets secrets_{dir_ + "/webhooks"};
  FakeReceiver receiver_;
  double chance_ = 0;
  int woken_ = 0;
  WebhookSender sender_{*store_, secrets_, receiver_, clock_, [this] { return chance_; }};
  Webhooks webhooks_{*store_, clock_, secrets_, PublicNames(), [this] { ++woken_; }};
  std::string secret_;  // of the hook that was added last
};

}  // namespace sft::server
