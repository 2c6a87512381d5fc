#include "server/webhooks/webhook_transport.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/mutex.h"
#include "tests/unit/server/loopback.h"

namespace sft::server {
namespace {

// Takes connections on loopback one after the other, and answers each request with the same bytes.
class Receiver {
 public:
  explicit Receiver(std::string answer)
      : server_("\"end\"",  // of the body of each test
                [this, answer = std::move(answer)](const std::string& request) {
                  const MutexLock lock(mutex_);
                  requests_ += request;
                  return answer;
                }) {}
  std::string Url(const std::string& host) const {
    return fmt::format("http://{}:{}/hook", host, server_.port());
  }
  // All that have come.
  std::string requests() const {
    const MutexLock lock(mutex_);
    return requests_;
  }

 private:
  mutable Mutex mutex_;
  std::string requests_ SFT_GUARDED_BY(mutex_);
  LoopbackServer server_;  // the last: its thread uses the others
};

std::string Answer(const std::string& status, const std::string& headers, const std::string& body) {
  return fmt::format("HTTP/1.1 {}\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     headers, body.size(), body);
}

absl::StatusOr<WebhookAnswer> Post(const std::string& url, const std::vector<std::string>& allowed,
                                   AddressGuard::Resolve resolve = nullptr) {
  hub::HttpOptions http;
  http.http_proxy = http.https_proxy = "http://127.0.0.1:1";  // must not be used
  HttpWebhookTransport transport(AddressGuard::Make(allowed, std::move(resolve)).value(), http);
  return transport.Post({url, {{"webhook-id", "msg_1"}}, "{\"type\":\"end\"}"});
}

TEST(WebhookTransportTest, PostsToTheAddressThatWasCheckedUnderItsName) {
  const Receiver receiver(Answer("204 No Content", "", ""));
  int looked_up = 0;
  const auto answer =
      Post(receiver.Url("hooks.invalid"), {"127.0.0.0/8"},
           [&](const std::string& host) -> absl::StatusOr<std::vector<AddressGuard::Address>> {
             EXPECT_EQ(host, "hooks.invalid");
             ++looked_up;
             AddressGuard::Address loopback;
             EXPECT_EQ(inet_pton(AF_INET6, "::ffff:127.0.0.1", loopback.bytes), 1);
             return std::vector{loopback};
           });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 204);
  EXPECT_EQ(looked_up, 1);
  EXPECT_EQ(receiver.requests().find("POST /hook HTTP/1.1\r\n"), 0u) << receiver.requests();
  EXPECT_NE(receiver.requests().find("Host: hooks.invalid"), std::string::npos);
  EXPECT_NE(receiver.requests().find("webhook-id: msg_1"), std::string::npos);
  EXPECT_NE(receiver.requests().find("\r\n\r\n{\"type\":\"end\"}"), std::string::npos);
}

TEST(WebhookTransportTest, FollowsNoRedirect) {
  const Receiver inside(Answer("200 OK", "", "secret"));
  const Receiver receiver(
      Answer("302 Found", fmt::format("Location: {}\r\n", inside.Url("127.0.0.1")), ""));
  const auto answer = Post(receiver.Url("127.0.0.1"), {"127.0.0.0/8"});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 302);
  EXPECT_EQ(inside.requests(), "");
}

TEST(WebhookTransportTest, TakesAnAnswerOfSixtyFourKibibytesAndNoMore) {
  const Receiver small(Answer("200 OK", "", std::string(HttpWebhookTransport::kMostAnswer, 'x')));
  EXPECT_EQ(Post(small.Url("127.0.0.1"), {"127.0.0.0/8"})->status, 200);
  const Receiver large(
      Answer("200 OK", "", std::string(HttpWebhookTransport::kMostAnswer + 1, 'x')));
  const absl::Status refused = Post(large.Url("127.0.0.1"), {"127.0.0.0/8"}).status();
  EXPECT_NE(refused.message().find("more than 65536 bytes"), std::string_view::npos) << refused;
}

TEST(WebhookTransportTest, HearsWhenTheReceiverWantsTheNextTry) {
  const Receiver receiver(Answer("429 Too Many Requests", "Retry-After: 120\r\n", ""));
  const auto answer = Post(receiver.Url("127.0.0.1"), {"127.0.0.0/8"});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->status, 429);
  EXPECT_EQ(answer->retry_after_s, 120);
}

TEST(WebhookTransportTest, AClosedAddressIsNotConnectedTo) {
  const Receiver receiver(Answer("200 OK", "", ""));
  EXPECT_TRUE(absl::IsPermissionDenied(Post(receiver.Url("127.0.0.1"), {}).status()));
  EXPECT_EQ(receiver.requests(), "");
}

}  // namespace
}  // namespace sft::server
