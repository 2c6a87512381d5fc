#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace sft::server {

// Secrets by which receivers know what is from this server, and addresses that are secrets
// themselves. Each webhook's is a file DIR/ID beside the database, for this user alone, and so in
// no backup. Thread-safe, but for changes of the same one.
class WebhookSecrets {
 public:
  // An old secret signs so much longer beside the new one.
  static constexpr int64_t kOverlapUs = int64_t{24} * 3'600'000'000;

  explicit WebhookSecrets(std::string dir) : dir_(std::move(dir)) {}

  // Of what is kept, that which is in use at the time, the newest first. FAILED_PRECONDITION where
  // there is none, as after the restore of a backup.
  absl::StatusOr<std::vector<std::string>> Get(const std::string& hook, int64_t now_us) const;
  // Keeps it; the newest one of those before it stays in use for kOverlapUs.
  absl::Status Put(const std::string& hook, const std::string& secret, int64_t now_us) const;
  absl::Status Remove(const std::string& hook) const;
  // The webhooks that have one.
  absl::StatusOr<std::vector<std::string>> List() const;

 private:
  const std::string dir_;
};

// "whsec_" and 32 random bytes in base64.
std::string MakeWebhookSecret();

// The header webhook-signature of Standard Webhooks 1.0: for each secret "v1," and the HMAC-SHA256
// of "ID.SECONDS.BODY" in base64, with spaces between them.
std::string SignWebhook(const std::vector<std::string>& secrets, std::string_view id,
                        int64_t seconds, std::string_view body);

}  // namespace sft::server
