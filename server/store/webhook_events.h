#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/database/sqlite.h"
#include "server/state/prices.h"
#include "server/state/records.h"

// What webhooks are told. Each function writes the deliveries of one event in the transaction that
// it is called in, which is that of what happened, so that nothing is told that did not happen, and
// nothing is left out. Payloads are thin: names, states and verdicts, never rows or log text. As
// jobs.h.

namespace sft::server::store {

// An event that a hook may ask for.
struct WebhookEvent {
  std::string_view type;
  bool of_project = true;  // false: of the server's nodes and disk, for hooks of the server alone
  std::string_view what;   // for people
};
std::span<const WebhookEvent> WebhookEvents();
// What `sftctl webhook test` sends, to its hook alone.
inline constexpr char kTestEvent[] = "webhook.test";

// `type`: "job.queued", "job.restarted", ... `verdict`: why, where it has one.
absl::Status TellJob(Database& db, std::string_view type, const JobRecord& job,
                     const Verdict& verdict, int64_t now_us);
// The job has taken an edge: started, succeeded, failed or cancelled; other states are not told.
absl::Status TellEdge(Database& db, const JobRecord& job, int64_t now_us);
absl::Status TellCheckpoint(Database& db, const CheckpointRecord& checkpoint, int64_t now_us);
// "node.suspect", "node.held"
absl::Status TellNode(Database& db, std::string_view type, const std::string& node,
                      const std::string& reason, int64_t now_us);
// "budget.warned", "budget.reached"
absl::Status TellBudget(Database& db, std::string_view type, const BudgetRecord& budget,
                        int64_t spent_micros, const std::string& currency, int64_t now_us);
absl::Status TellDisk(Database& db, int64_t free_bytes, int64_t total_bytes, int64_t now_us);
// To one hook, whatever it asks for. The delivery's id.
absl::StatusOr<std::string> TellTest(Database& db, const std::string& hook,
                                     const std::string& project, int64_t now_us);

}  // namespace sft::server::store
