#include "server/store/webhooks.h"

#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/ids.h"
#include "server/store/jobs.h"
#include "server/store/states.h"
#include "server/store/tallies.h"

namespace sft::server::store {
namespace {

#define SFT_HOOK_COLUMNS                                                                     \
  "id, project, url, format, events, created_by, created_us, off_us, off_reason, failures, " \
  "rest_until_us, delivered_us, tried_us, of_jobs"
#define SFT_DELIVERY_COLUMNS                                                              \
  "d.sequence, d.id, d.hook, d.type, d.body, d.created_us, d.state, d.tries, d.next_us, " \
  "d.last_us, d.status, d.error"
#define SFT_OPENAI_TYPES "fine_tuning."
static_assert(kOpenAiTypes == SFT_OPENAI_TYPES);
// As SQL compares them.
#define SFT_WAITS "= 1"
#define SFT_WAS_LOST "IN (3, 4)"
static_assert(static_cast<int>(DeliveryState::kWaiting) == 1);
static_assert(static_cast<int>(DeliveryState::kFailed) == 3);
static_assert(static_cast<int>(DeliveryState::kDropped) == 4);

WebhookRecord ReadHook(const Statement& row) {
  WebhookRecord hook;
  hook.id = row.Text(0);
  hook.project = row.Text(1);
  hook.url = row.Text(2);
  hook.format = static_cast<WebhookFormat>(row.Int(3));
  hook.events = absl::StrSplit(row.Text(4), ',', absl::SkipEmpty());
  hook.created_by = row.Text(5);
  hook.created_us = row.Int(6);
  hook.off_us = row.Int(7);
  hook.off_reason = row.Text(8);
  hook.failures = static_cast<int>(row.Int(9));
  hook.rest_until_us = row.Int(10);
  hook.delivered_us = row.Int(11);
  hook.tried_us = row.Int(12);
  hook.of_jobs = row.Bool(13);
  return hook;
}

DeliveryRecord ReadDelivery(const Statement& row) {
  return {row.Int(0),
          row.Text(1),
          row.Text(2),
          row.Text(3),
          row.Text(4),
          row.Int(5),
          static_cast<DeliveryState>(row.Int(6)),
          static_cast<int>(row.Int(7)),
          row.Int(8),
          row.Int(9),
          static_cast<int>(row.Int(10)),
          row.Text(11)};
}

absl::StatusOr<std::vector<WebhookRecord>> ReadHooks(Statement& list) {
  std::vector<WebhookRecord> hooks;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return hooks;
    hooks.push_back(ReadHook(list));
  }
}

absl::StatusOr<std::vector<DeliveryRecord>> ReadDeliveries(Statement& list) {
  std::vector<DeliveryRecord> deliveries;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return deliveries;
    deliveries.push_back(ReadDelivery(list));
  }
}

absl::Status NoHook(const std::string& id) {
  return NotFound(fmt::format("no webhook \"{}\": `sftctl webhook list` shows them", id));
}

absl::Status CountResult(Database& db, DeliveryState state, int64_t count) {
  const char* result = state == DeliveryState::kDelivered ? "delivered"
                       : state == DeliveryState::kFailed  ? "failed"
                       : state == DeliveryState::kDropped ? "dropped"
                                                          : "retried";
  if (count == 0) return absl::OkStatus();
  return AddTally(db, {Tally::kWebhookDeliveries, result, "", static_cast<double>(count)});
}

absl::Status DropOldest(Database& db, const std::string& hook) {
  SFT_ASSIGN_OR_RETURN(
      Statement drop,
      db.Prepare("UPDATE webhook_deliveries SET state = ?, error = ? WHERE sequence IN (SELECT "
                 "sequence FROM webhook_deliveries WHERE hook = ? AND state " SFT_WAITS
                 " ORDER BY sequence DESC LIMIT -1 OFFSET ?)"));
  drop.Bind(static_cast<int>(DeliveryState::kDropped));
  drop.Bind(fmt::format("more than {} waited: the oldest are dropped", kMaxWaiting));
  SFT_RETURN_IF_ERROR(drop.Bind(hook).Bind(kMaxWaiting).Run());
  return CountResult(db, DeliveryState::kDropped, db.changes());
}

absl::Status ForgetOldest(Database& db, const std::string& hook) {
  SFT_ASSIGN_OR_RETURN(
      Statement forget,
      db.Prepare("DELETE FROM webhook_deliveries WHERE sequence IN (SELECT sequence FROM "
                 "webhook_deliveries WHERE hook = ? AND state != 1 ORDER BY sequence DESC LIMIT -1 "
                 "OFFSET ?)"));
  return forget.Bind(hook).Bind(kMaxEnded).Run();
}

// Where the project's jobs have named as many addresses as they may, forgets the one that was tried
// longest ago of those whose jobs have ended and been told.
absl::Status MakeRoomForAddress(Database& db, const std::string& project) {
  {
    SFT_ASSIGN_OR_RETURN(
        Statement count,
        db.Prepare("SELECT count(*) FROM webhooks WHERE project = ? AND of_jobs = 1"));
    SFT_RETURN_IF_ERROR(count.Bind(project).Step().status());
    if (count.Int(0) < kMaxJobAddresses) return absl::OkStatus();
  }
  SFT_ASSIGN_OR_RETURN(
      Statement forget,
      db.Prepare("DELETE FROM webhooks WHERE id = (SELECT w.id FROM webhooks w WHERE w.project = ? "
                 "AND w.of_jobs = 1 AND NOT EXISTS (SELECT 1 FROM job_mail m JOIN jobs j ON j.id = "
                 "m.job_id WHERE m.hook = w.id AND j.state " SFT_IS_LIVE
                 ") AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.hook = w.id AND "
                 "d.state " SFT_WAITS ") ORDER BY w.tried_us, w.id LIMIT 1)"));
  return forget.Bind(project).Run();
}

}  // namespace

absl::Status InsertWebhook(Database& db, const WebhookRecord& hook) {
  {
    SFT_ASSIGN_OR_RETURN(Statement count,
                         db.Prepare("SELECT count(*) FROM webhooks WHERE project = ? AND of_jobs "
                                    "= ?"));
    SFT_RETURN_IF_ERROR(count.Bind(hook.project).Bind(hook.of_jobs).Step().status());
    if (count.Int(0) >= (hook.of_jobs ? kMaxJobAddresses : kMaxHooks)) {
      return ResourceExhausted(fmt::format(
          "there are {} {} already: remove one first (`sftctl webhook remove`)", count.Int(0),
          hook.of_jobs ? "addresses that jobs of the project have named" : "webhooks"));
    }
  }
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare("INSERT INTO webhooks (id, project, url, format, events, "
                 "created_by, created_us, of_jobs) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
  insert.Bind(hook.id).Bind(hook.project).Bind(hook.url).Bind(static_cast<int>(hook.format));
  insert.Bind(fmt::format("{}", fmt::join(hook.events, ",")));
  return insert.Bind(hook.created_by).Bind(hook.created_us).Bind(hook.of_jobs).Run();
}

absl::StatusOr<WebhookRecord> FindWebhook(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_HOOK_COLUMNS " FROM webhooks WHERE id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  if (!row) return NoHook(id);
  return ReadHook(get);
}

absl::StatusOr<WebhookRecord> GetWebhook(Database& db, const std::string& project,
                                         const std::string& id) {
  SFT_ASSIGN_OR_RETURN(WebhookRecord hook, FindWebhook(db, id));
  return hook.project == project ? absl::StatusOr<WebhookRecord>(std::move(hook)) : NoHook(id);
}

absl::StatusOr<std::vector<WebhookRecord>> ListWebhooks(Database& db,
                                                        const std::optional<std::string>& project) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare(
          "SELECT " SFT_HOOK_COLUMNS
          " FROM webhooks WHERE ?1 IS NULL OR project = ?1 ORDER BY project, created_us, id"));
  project.has_value() ? list.Bind(*project) : list.BindNull();
  return ReadHooks(list);
}

absl::Status DeleteWebhook(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement remove, db.Prepare("DELETE FROM webhooks WHERE id = ?"));
  return remove.Bind(id).Run();
}

absl::Status UpdateWebhook(Database& db, const WebhookRecord& hook) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE webhooks SET off_us = ?, off_reason = ?, failures = ?, "
                                  "rest_until_us = ?, delivered_us = ?, tried_us = ? WHERE id = "
                                  "?"));
  update.Bind(hook.off_us).Bind(hook.off_reason).Bind(hook.failures).Bind(hook.rest_until_us);
  return update.Bind(hook.delivered_us).Bind(hook.tried_us).Bind(hook.id).Run();
}

absl::Status SwitchOn(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE webhooks SET off_us = 0, off_reason = '', failures = 0 "
                                  "WHERE id = ? AND off_us > 0"));
  return update.Bind(id).Run();
}

absl::Status SwitchOff(Database& db, WebhookRecord& hook, const std::string& reason,
                       int64_t now_us) {
  hook.off_us = now_us;
  hook.off_reason = reason;
  SFT_RETURN_IF_ERROR(UpdateWebhook(db, hook));
  {
    SFT_ASSIGN_OR_RETURN(Statement fail,
                         db.Prepare("UPDATE webhook_deliveries SET state = ?, error = ? WHERE hook "
                                    "= ? AND state " SFT_WAITS));
    fail.Bind(static_cast<int>(DeliveryState::kFailed)).Bind("the webhook was put off: " + reason);
    SFT_RETURN_IF_ERROR(fail.Bind(hook.id).Run());
  }
  SFT_RETURN_IF_ERROR(CountResult(db, DeliveryState::kFailed, db.changes()));
  return ForgetOldest(db, hook.id);
}

absl::StatusOr<std::string> FindAddress(Database& db, const std::string& project,
                                        const std::string& owner, const std::string& url) {
  SFT_ASSIGN_OR_RETURN(Statement find,
                       db.Prepare("SELECT id FROM webhooks WHERE project = ? AND of_jobs = 1 AND "
                                  "created_by = ? AND url = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, find.Bind(project).Bind(owner).Bind(url).Step());
  return row ? find.Text(0) : std::string();
}

absl::Status AskToBeTold(Database& db, const JobRecord& job, const std::string& url,
                         const std::vector<std::string>& events) {
  const bool mail = url.starts_with(kMailScheme);
  WebhookRecord hook;
  hook.project = job.project;
  hook.url = url;
  hook.format = mail ? WebhookFormat::kMail : WebhookFormat::kStandard;
  hook.created_by = job.owner;
  hook.created_us = job.created_us;
  hook.of_jobs = true;
  SFT_ASSIGN_OR_RETURN(hook.id, FindAddress(db, job.project, job.owner, url));
  if (hook.id.empty()) {
    hook.id = mail ? RandomId("hook") : job.offered_hook;
    if (hook.id.empty()) {
      return Aborted(
          fmt::format("the webhook of {} was removed just now: submit the job again", url));
    }
    SFT_RETURN_IF_ERROR(MakeRoomForAddress(db, hook.project));
    SFT_RETURN_IF_ERROR(InsertWebhook(db, hook));
  } else {
    SFT_RETURN_IF_ERROR(SwitchOn(db, hook.id));  // asked for anew, by who may
  }
  SFT_ASSIGN_OR_RETURN(Statement ask, db.Prepare("INSERT OR REPLACE INTO job_mail (job_id, hook, "
                                                 "events) VALUES (?, ?, ?)"));
  ask.Bind(job.id).Bind(hook.id).Bind(fmt::format("{}", fmt::join(events, ",")));
  return ask.Run();
}

absl::StatusOr<std::vector<JobHookRecord>> HooksOfJob(Database& db, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_HOOK_COLUMNS
                                  ", m.asked FROM webhooks JOIN (SELECT hook, events AS asked FROM "
                                  "job_mail WHERE job_id = ?) m ON m.hook = id ORDER BY url"));
  list.Bind(job_id);
  std::vector<JobHookRecord> hooks;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return hooks;
    hooks.push_back({ReadHook(list), absl::StrSplit(list.Text(14), ',', absl::SkipEmpty())});
  }
}

absl::Status ForgetIdleAddresses(Database& db, int64_t before_us) {
  // What was tried lately is passed over without a look at its jobs, which may be many.
  SFT_ASSIGN_OR_RETURN(
      Statement forget,
      db.Prepare("DELETE FROM webhooks WHERE of_jobs = 1 AND created_us < ?1 AND tried_us < ?1 AND "
                 "NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.hook = webhooks.id AND "
                 "d.state " SFT_WAITS
                 ") AND NOT EXISTS (SELECT 1 FROM job_mail m JOIN jobs j ON j.id = m.job_id WHERE "
                 "m.hook = webhooks.id AND (j.state " SFT_IS_LIVE " OR j.ended_us >= ?1))"));
  return forget.Bind(before_us).Run();
}

absl::StatusOr<std::vector<std::string>> HooksFor(Database& db, const std::string& project,
                                                  const std::string& type,
                                                  const std::string& job_id) {
  // Who hears of all hears of each thing once, in this server's words.
#define SFT_HEARS(events)                                                            \
  "(" events " = '' AND ?2 NOT LIKE '" SFT_OPENAI_TYPES "%' OR instr(',' || " events \
  " || ',', ',' || ?2 || ',') > 0)"
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT id FROM webhooks WHERE project IN (?1, '') AND off_us = 0 AND of_jobs = 0 "
                 "AND " SFT_HEARS(
                     "events") " UNION SELECT w.id FROM job_mail m JOIN webhooks w ON "
                               "w.id = m.hook WHERE m.job_id = ?3 AND w.off_us = 0 AND " SFT_HEARS(
                                   "m.events") " ORDER BY 1"));
#undef SFT_HEARS
  list.Bind(project).Bind(type).Bind(job_id);
  std::vector<std::string> hooks;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return hooks;
    hooks.push_back(list.Text(0));
  }
}

absl::StatusOr<std::string> Enqueue(Database& db, const std::string& hook, const std::string& type,
                                    const std::string& body, int64_t now_us) {
  std::string id = "msg_" + RandomUuid();
  {
    SFT_ASSIGN_OR_RETURN(Statement insert,
                         db.Prepare("INSERT INTO webhook_deliveries (id, hook, type, body, "
                                    "created_us, next_us) VALUES (?, ?, ?, ?, ?, ?)"));
    insert.Bind(id).Bind(hook).Bind(type).Bind(body).Bind(now_us).Bind(now_us);
    SFT_RETURN_IF_ERROR(insert.Run());
  }
  int64_t told = 0;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement count,
        db.Prepare("UPDATE webhooks SET told = told + 1 WHERE id = ? RETURNING told"));
    SFT_RETURN_IF_ERROR(count.Bind(hook).Step().status());
    told = count.Int(0);
  }
  // It walks over all that wait, in the transaction of what happened.
  if (told % kTrimEvery == 0) SFT_RETURN_IF_ERROR(DropOldest(db, hook));
  return id;
}

absl::StatusOr<std::vector<WebhookRecord>> ReadyHooks(Database& db, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT " SFT_HOOK_COLUMNS
                 " FROM webhooks w WHERE w.off_us = 0 AND w.rest_until_us <= ?1 AND EXISTS (SELECT "
                 "1 FROM webhook_deliveries d INDEXED BY webhook_deliveries_due WHERE d.hook = "
                 "w.id AND d.state " SFT_WAITS " AND d.next_us <= ?1) ORDER BY w.tried_us, w.id"));
  list.Bind(now_us);
  return ReadHooks(list);
}

absl::StatusOr<std::optional<DeliveryRecord>> NextDelivery(Database& db, const std::string& hook,
                                                           int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(
      Statement next,
      db.Prepare("SELECT " SFT_DELIVERY_COLUMNS
                 " FROM webhook_deliveries d INDEXED BY webhook_deliveries_due WHERE d.hook = ? "
                 "AND d.state " SFT_WAITS
                 " AND d.next_us <= ? ORDER BY d.next_us, d.sequence LIMIT 1"));
  SFT_ASSIGN_OR_RETURN(const bool row, next.Bind(hook).Bind(now_us).Step());
  if (!row) return std::optional<DeliveryRecord>();
  return std::optional<DeliveryRecord>(ReadDelivery(next));
}

absl::StatusOr<int64_t> CountWaiting(Database& db, const std::string& hook,
                                     const std::string& type) {
  SFT_ASSIGN_OR_RETURN(Statement count,
                       db.Prepare("SELECT count(*) FROM webhook_deliveries WHERE hook = ? AND "
                                  "state " SFT_WAITS " AND type = ?"));
  SFT_RETURN_IF_ERROR(count.Bind(hook).Bind(type).Step().status());
  return count.Int(0);
}

absl::Status UpdateDelivery(Database& db, const DeliveryRecord& delivery) {
  {
    SFT_ASSIGN_OR_RETURN(
        Statement update,
        db.Prepare("UPDATE webhook_deliveries SET state = ?, tries = ?, next_us = ?, last_us = ?, "
                   "status = ?, error = ? WHERE id = ?"));
    update.Bind(static_cast<int>(delivery.state)).Bind(delivery.tries).Bind(delivery.next_us);
    update.Bind(delivery.last_us).Bind(delivery.status).Bind(delivery.error).Bind(delivery.id);
    SFT_RETURN_IF_ERROR(update.Run());
  }
  if (db.changes() == 0) return NoHook(delivery.hook);
  SFT_RETURN_IF_ERROR(CountResult(db, delivery.state, 1));
  return delivery.state == DeliveryState::kWaiting ? absl::OkStatus()
                                                   : ForgetOldest(db, delivery.hook);
}

absl::StatusOr<DeliveryRecord> GetDelivery(Database& db, const std::string& hook,
                                           const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT " SFT_DELIVERY_COLUMNS
                                                 " FROM webhook_deliveries d WHERE d.id = ? AND "
                                                 "d.hook = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Bind(hook).Step());
  if (!row) {
    return NotFound(
        fmt::format("no delivery \"{}\": `sftctl webhook deliveries {}` shows the last "
                    "{:L}",
                    id, hook, kMaxEnded));
  }
  return ReadDelivery(get);
}

absl::StatusOr<std::vector<DeliveryRecord>> ListDeliveries(Database& db, const std::string& hook,
                                                           int64_t before, int limit) {
  SFT_ASSIGN_OR_RETURN(Statement list,
                       db.Prepare("SELECT " SFT_DELIVERY_COLUMNS
                                  " FROM webhook_deliveries d WHERE d.hook = ? AND d.sequence < ? "
                                  "ORDER BY d.sequence DESC LIMIT ?"));
  list.Bind(hook).Bind(before > 0 ? before : INT64_MAX).Bind(std::clamp(limit, 1, kMaxPage));
  return ReadDeliveries(list);
}

absl::StatusOr<int64_t> Replay(Database& db, const std::string& hook, const std::string& id,
                               int64_t since_us, int64_t now_us) {
  int64_t count = 0;
  {
    SFT_ASSIGN_OR_RETURN(
        Statement replay,
        db.Prepare(
            "UPDATE webhook_deliveries SET state = ?1, tries = 0, next_us = ?2 WHERE hook = ?3 AND "
            "CASE ?4 WHEN '' THEN state " SFT_WAS_LOST " AND created_us >= ?5 ELSE id = ?4 END"));
    replay.Bind(static_cast<int>(DeliveryState::kWaiting)).Bind(now_us).Bind(hook);
    SFT_RETURN_IF_ERROR(replay.Bind(id).Bind(since_us).Run());
    count = db.changes();
  }
  SFT_RETURN_IF_ERROR(DropOldest(db, hook));
  return count;
}

}  // namespace sft::server::store
