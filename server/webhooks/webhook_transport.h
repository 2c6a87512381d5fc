#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/hub/http.h"
#include "server/webhooks/address_guard.h"

namespace sft::server {

// One try of a delivery.
struct WebhookPost {
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};
// What was answered.
struct WebhookAnswer {
  int status = 0;
  int64_t retry_after_s = 0;  // that it asks for; 0: it does not, or by a date
  bool final = false;         // this message will not be taken, however often it is tried
  bool gone = false;          // nor will any other
  std::string said;           // where it is not taken: why, for people
};

// Of a status of HTTP.
WebhookAnswer HttpAnswer(int status, int64_t retry_after_s = 0);

// Sends webhooks. Used by one thread.
class WebhookTransport {
 public:
  virtual ~WebhookTransport() = default;
  // An error where there was no answer.
  virtual absl::StatusOr<WebhookAnswer> Post(const WebhookPost& post) = 0;
};

// By HTTP, to the address that the guard has checked: no proxy, no redirect, kTimeout for all of
// it, and an answer of at most kMostAnswer bytes, of which only the status counts.
class HttpWebhookTransport final : public WebhookTransport {
 public:
  static constexpr std::chrono::seconds kTimeout{15};
  static constexpr size_t kMostAnswer = size_t{64} << 10;

  // `http`: certificates that are trusted and limits.
  HttpWebhookTransport(AddressGuard guard, hub::HttpOptions http);
  absl::StatusOr<WebhookAnswer> Post(const WebhookPost& post) override;

 private:
  const AddressGuard guard_;
  const hub::HttpOptions http_;
};

}  // namespace sft::server
