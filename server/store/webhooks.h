#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"

// Rows of webhooks, addresses that are told of events, and of their deliveries. As jobs.h.

namespace sft::server::store {

// Stored: never renumber.
enum class WebhookFormat : int { kStandard = 1, kSlack = 2, kMail = 3 };
enum class DeliveryState : int { kWaiting = 1, kDelivered = 2, kFailed = 3, kDropped = 4 };

// What the url of mail begins with.
inline constexpr std::string_view kMailScheme = "mailto:";
// What events in the words of OpenAI's API begin with.
inline constexpr std::string_view kOpenAiTypes = "fine_tuning.";

// Hooks of a project (of the server: the same), deliveries of a hook that wait, and those that
// ended and are kept.
inline constexpr int kMaxHooks = 20, kMaxWaiting = 1000, kMaxEnded = 1000;
// Addresses of a project that jobs have named (WebhookRecord::of_jobs).
inline constexpr int kMaxJobAddresses = 200;
// Only each time that a hook has been told so much more it is looked for those beyond kMaxWaiting.
inline constexpr int kTrimEvery = 64;

// An address that is told of events.
struct WebhookRecord {
  std::string id;
  std::string project;  // empty: it is told of all projects, and of nodes and the server
  std::string url;      // of Slack's format its origin alone: the rest is a secret
  WebhookFormat format = WebhookFormat::kStandard;
  std::vector<std::string> events;  // empty: all
  std::string created_by;
  int64_t created_us = 0;
  int64_t off_us = 0;  // since when it is told nothing more; 0: it is on
  std::string off_reason;
  int failures = 0;           // tries in a row
  int64_t rest_until_us = 0;  // no try before
  int64_t delivered_us = 0;   // the last time that it took something
  int64_t tried_us = 0;       // the last try; 0: none
  // An address that jobs of `created_by` have named: it hears of those alone (AskToBeTold).
  bool of_jobs = false;
};

// A hook that a job has named, and what it is told of the job.
struct JobHookRecord {
  WebhookRecord hook;
  std::vector<std::string> events;  // empty: all
};

// One event for one hook.
struct DeliveryRecord {
  int64_t sequence = 0;
  std::string id;  // the same for each try
  std::string hook;
  std::string type;
  std::string body;  // JSON
  int64_t created_us = 0;
  DeliveryState state = DeliveryState::kWaiting;
  int tries = 0;
  int64_t next_us = 0;  // of a waiting one: when it is tried next
  int64_t last_us = 0;  // the last try; 0: none
  int status = 0;       // that HTTP answered; 0: there was no answer
  std::string error;
};

// RESOURCE_EXHAUSTED where the project has kMaxHooks (of jobs: kMaxJobAddresses).
absl::Status InsertWebhook(Database& db, const WebhookRecord& hook);
// NOT_FOUND also for a hook of another project than the one named.
absl::StatusOr<WebhookRecord> GetWebhook(Database& db, const std::string& project,
                                         const std::string& id);
absl::StatusOr<WebhookRecord> FindWebhook(Database& db, const std::string& id);
// Oldest first; of one project, or, where it is absent, all.
absl::StatusOr<std::vector<WebhookRecord>> ListWebhooks(Database& db,
                                                        const std::optional<std::string>& project);
// With its deliveries.
absl::Status DeleteWebhook(Database& db, const std::string& id);
// Stores what deliveries change: off_us, off_reason, failures, rest_until_us, delivered_us,
// tried_us.
absl::Status UpdateWebhook(Database& db, const WebhookRecord& hook);
// A hook that was put off is told what comes from now on; if it rests, it goes on resting. One that
// is on stays as it is.
absl::Status SwitchOn(Database& db, const std::string& id);
// It is told nothing more, and what waits for it has failed.
absl::Status SwitchOff(Database& db, WebhookRecord& hook, const std::string& reason,
                       int64_t now_us);

// Has the job's events told to an address, by the hook that jobs of its owner have for it or a new
// one: mail where the url begins with kMailScheme, else one with the id job.offered_hook. `events`
// as WebhookRecord::events. ABORTED where neither is there.
absl::Status AskToBeTold(Database& db, const JobRecord& job, const std::string& url,
                         const std::vector<std::string>& events);
// The hook by which jobs of an owner tell the address. Empty: there is none.
absl::StatusOr<std::string> FindAddress(Database& db, const std::string& project,
                                        const std::string& owner, const std::string& url);
absl::StatusOr<std::vector<JobHookRecord>> HooksOfJob(Database& db, const std::string& job_id);
// Removes addresses that jobs have named, where all of these have ended before then, nothing was
// tried since and nothing waits.
absl::Status ForgetIdleAddresses(Database& db, int64_t before_us);

// Hooks that are on and want to hear of the event: those of the project and of the server, and of
// the job, if it is about one; of an empty project the server's. Events of kOpenAiTypes are for
// those that name them.
absl::StatusOr<std::vector<std::string>> HooksFor(Database& db, const std::string& project,
                                                  const std::string& type,
                                                  const std::string& job_id = "");
// A new delivery, which is due now; its id. Of those beyond kMaxWaiting the oldest are dropped,
// kTrimEvery at a time.
absl::StatusOr<std::string> Enqueue(Database& db, const std::string& hook, const std::string& type,
                                    const std::string& body, int64_t now_us);
// Hooks that are on, do not rest and have a delivery that is due; tried longest ago first.
absl::StatusOr<std::vector<WebhookRecord>> ReadyHooks(Database& db, int64_t now_us);
// The delivery of the hook that has been due for longest.
absl::StatusOr<std::optional<DeliveryRecord>> NextDelivery(Database& db, const std::string& hook,
                                                           int64_t now_us);
// How many deliveries of one event wait for the hook.
absl::StatusOr<int64_t> CountWaiting(Database& db, const std::string& hook,
                                     const std::string& type);
// Stores state, tries, next_us, last_us, status and error; forgets the oldest beyond kMaxEnded.
// NOT_FOUND where the hook was removed meanwhile.
absl::Status UpdateDelivery(Database& db, const DeliveryRecord& delivery);

absl::StatusOr<DeliveryRecord> GetDelivery(Database& db, const std::string& hook,
                                           const std::string& id);
// Newest first, below this sequence; 0: from the newest.
absl::StatusOr<std::vector<DeliveryRecord>> ListDeliveries(Database& db, const std::string& hook,
                                                           int64_t before, int limit);
// Ended deliveries are due again, as new: the one named, or, where it is empty, those that failed
// or were dropped since then. How many.
absl::StatusOr<int64_t> Replay(Database& db, const std::string& hook, const std::string& id,
                               int64_t since_us, int64_t now_us);

}  // namespace sft::server::store
