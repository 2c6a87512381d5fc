#pragma once

#include <functional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/core/mail_rules.h"
#include "server/store/store.h"
#include "server/webhooks/address_guard.h"
#include "server/webhooks/webhook_secrets.h"
#include "sft/v1/webhook_service.pb.h"

namespace sft::server {

// Webhooks as their owners see them; webhook_service.proto says what each does and refuses. Of a
// project, or, where it is empty, of the server. Thread-safe.
class Webhooks {
 public:
  static constexpr size_t kLongestUrl = 2000;
  // Tests of a hook that wait; more are refused with RESOURCE_EXHAUSTED.
  static constexpr int64_t kMaxTests = 10;

  // All borrowed but `guard`, `mail` and `wake`, which says that there is something to send.
  Webhooks(Store& store, Clock& clock, const WebhookSecrets& secrets, AddressGuard guard,
           std::function<void()> wake, MailRules mail = {})
      : store_(store),
        clock_(clock),
        secrets_(secrets),
        guard_(std::move(guard)),
        wake_(std::move(wake)),
        mail_(std::move(mail)) {}

  absl::StatusOr<v1::AddWebhookResponse> Add(const std::string& project,
                                             const v1::AddWebhookRequest& request,
                                             const Actor& actor);
  absl::StatusOr<v1::ListWebhooksResponse> List(const std::string& project);
  absl::StatusOr<v1::ListWebhookDeliveriesResponse> Deliveries(const std::string& project,
                                                               const std::string& id,
                                                               int64_t before, int limit,
                                                               int64_t& last_sequence);
  absl::StatusOr<v1::WebhookDelivery> Test(const std::string& project, const std::string& id,
                                           const Actor& actor);
  absl::StatusOr<v1::ReplayWebhookResponse> Replay(const std::string& project,
                                                   const v1::ReplayWebhookRequest& request,
                                                   const Actor& actor);
  absl::StatusOr<v1::RotateWebhookResponse> Rotate(const std::string& project,
                                                   const std::string& id, const Actor& actor);
  absl::Status Remove(const std::string& project, const std::string& id, const Actor& actor);

 private:
  absl::Status CheckMail(const std::string& url) const;
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }

  Store& store_;
  Clock& clock_;
  const WebhookSecrets& secrets_;
  const AddressGuard guard_;
  const std::function<void()> wake_;
  const MailRules mail_;
  // Held over a whole change of a row and its file, so that changes do not overlap.
  Mutex changing_;
};

}  // namespace sft::server
