#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/store/store.h"
#include "server/store/webhooks.h"
#include "server/webhooks/mail_relay.h"
#include "server/webhooks/webhook_secrets.h"
#include "server/webhooks/webhook_transport.h"

namespace sft::server {

// The one thread that sends webhooks, and mail as one kind of them: what the database says is due.
// What was not taken with a status of 2xx is tried again after kDelaysS, each a little longer by
// chance, and not before the time that the receiver asks for; a hook whose try has failed rests
// meanwhile. A receiver that is gone puts its hook off (status 410; of mail a refused address), and
// so does the last try of a delivery since which it has taken nothing.
//
// So that nobody's receivers keep the others waiting, the project whose turn is the longest ago
// comes next (the server's own hooks are as one of another project), with that hook of its that was
// tried longest ago. A try moves its project's turn on by kSlowCounts times what it took, and after
// one of more than kSlow, whatever it brought, the hook rests for as long.
class WebhookSender {
 public:
  static constexpr std::chrono::seconds kPeriod{1};
  // Between the tries of a delivery, in seconds: 75 hours in all.
  static constexpr int64_t kDelaysS[] = {5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400};
  // How long a hook rests after a failed try, doubled with each in a row, and the most.
  static constexpr int64_t kRestS = 5, kLongestRestS = 300;
  static constexpr int64_t kLongestRetryAfterS = 86400;
  static constexpr std::chrono::seconds kSlow{2};
  static constexpr int kSlowCounts = 20;

  // All but `chance` borrowed, which gives numbers from 0 to 1. `mail` null: no mail is sent.
  WebhookSender(Store& store, const WebhookSecrets& secrets, WebhookTransport& transport,
                Clock& clock, std::function<double()> chance, MailTransport* mail = nullptr)
      : store_(store),
        secrets_(secrets),
        transport_(transport),
        clock_(clock),
        chance_(std::move(chance)),
        mail_(mail) {}
  ~WebhookSender() { Stop(); }

  void Start();
  // Waits for a try that is under way.
  void Stop();
  // There may be something to send; from any thread.
  void Wake();

  // Tries one delivery that is due. False: there is none. Where its outcome cannot be stored, the
  // next call begins with that, and nothing is sent before.
  absl::StatusOr<bool> Step();

 private:
  // A try that was made.
  struct Tried {
    store::WebhookRecord hook;
    store::DeliveryRecord delivery;
    absl::StatusOr<WebhookAnswer> answer;
    int64_t at_us = 0;  // its end
    Nanos took{};
  };

  void Loop();
  absl::StatusOr<std::optional<Tried>> TryNext();
  absl::StatusOr<WebhookAnswer> Try(const store::WebhookRecord& hook,
                                    const store::DeliveryRecord& delivery) const;
  absl::StatusOr<WebhookAnswer> TryMail(const store::WebhookRecord& hook,
                                        const store::DeliveryRecord& delivery) const;
  absl::Status Settle(Database& db, const Tried& tried);
  absl::Status SettleFailure(Database& db, const Tried& tried, store::WebhookRecord& hook,
                             store::DeliveryRecord& delivery);

  Store& store_;
  const WebhookSecrets& secrets_;
  WebhookTransport& transport_;
  Clock& clock_;
  const std::function<double()> chance_;
  MailTransport* const mail_;
  // Used by the thread that sends: what is not stored yet, and when projects had their turns.
  std::optional<Tried> unsettled_;
  std::map<std::string, MonoTime> turns_;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ SFT_GUARDED_BY(mutex_) = false;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The body in Slack's form: one text for people.
std::string SlackBody(const std::string& body);

}  // namespace sft::server
