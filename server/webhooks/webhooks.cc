#include "server/webhooks/webhooks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/ids.h"
#include "common/hub/http.h"
#include "server/core/convert.h"
#include "server/store/webhook_events.h"
#include "server/store/webhooks.h"

namespace sft::server {
namespace {

using store::DeliveryRecord;
using store::WebhookFormat;
using store::WebhookRecord;

bool IsOpenAi(const std::string& event) { return event.starts_with(store::kOpenAiTypes); }

v1::Webhook::Format FormatOf(const WebhookRecord& hook) {
  const bool openai = hook.format == WebhookFormat::kStandard && !hook.events.empty() &&
                      std::ranges::all_of(hook.events, IsOpenAi);
  return openai ? v1::Webhook::OPENAI : static_cast<v1::Webhook::Format>(hook.format);
}

v1::Webhook ToProto(const WebhookRecord& hook) {
  v1::Webhook proto;
  proto.set_id(hook.id);
  proto.set_project(hook.project);
  proto.set_url(hook.url);
  proto.set_format(FormatOf(hook));
  for (const std::string& event : hook.events) proto.add_events(event);
  proto.set_created_by(hook.created_by);
  *proto.mutable_create_time() = ToTimestamp(hook.created_us);
  if (hook.off_us > 0) *proto.mutable_off_time() = ToTimestamp(hook.off_us);
  proto.set_off_reason(hook.off_reason);
  proto.set_failures(hook.failures);
  proto.set_of_jobs(hook.of_jobs);
  if (hook.delivered_us > 0) *proto.mutable_last_delivery_time() = ToTimestamp(hook.delivered_us);
  return proto;
}

v1::WebhookDelivery ToProto(const DeliveryRecord& delivery, const WebhookRecord& hook) {
  v1::WebhookDelivery proto;
  proto.set_id(delivery.id);
  proto.set_type(delivery.type);
  proto.set_body(delivery.body);
  *proto.mutable_create_time() = ToTimestamp(delivery.created_us);
  proto.set_state(static_cast<v1::WebhookDelivery::State>(delivery.state));
  proto.set_tries(delivery.tries);
  if (delivery.state == store::DeliveryState::kWaiting) {
    *proto.mutable_next_try_time() = ToTimestamp(std::max(delivery.next_us, hook.rest_until_us));
  }
  if (delivery.last_us > 0) *proto.mutable_last_try_time() = ToTimestamp(delivery.last_us);
  proto.set_http_status(delivery.status);
  proto.set_error(delivery.error);
  return proto;
}

// As WebhookRecord::events.
std::vector<std::string> EventsOf(v1::Webhook::Format format,
                                  const google::protobuf::RepeatedPtrField<std::string>& asked) {
  std::vector<std::string> events(asked.begin(), asked.end());
  if (format != v1::Webhook::OPENAI || !events.empty()) return events;
  for (const store::WebhookEvent& event : store::WebhookEvents()) {
    if (event.type.starts_with(store::kOpenAiTypes)) events.emplace_back(event.type);
  }
  return events;
}

absl::Status CheckEvents(const v1::AddWebhookRequest& request, bool of_project) {
  const auto events = store::WebhookEvents();
  for (const std::string& asked : request.events()) {
    const auto known = std::ranges::find(events, asked, &store::WebhookEvent::type);
    if (known == events.end()) {
      std::string names;
      for (const store::WebhookEvent& event : events) {
        if (!of_project || event.of_project) names += fmt::format("{} ", event.type);
      }
      names.pop_back();
      return InvalidArgument(
          fmt::format("there is no event \"{}\": {}", asked.substr(0, 80), names));
    }
    if (of_project && !known->of_project) {
      return InvalidArgument(
          fmt::format("{} concerns no project: an admin hears of it with --of-server", asked));
    }
  }
  if (request.events_size() > static_cast<int>(events.size())) {
    return InvalidArgument("an event is named twice");
  }
  const bool openai = std::ranges::all_of(request.events(), IsOpenAi);
  if (request.format() != v1::Webhook::OPENAI || openai) return absl::OkStatus();
  return InvalidArgument(fmt::format("of OpenAI's format are {} alone",
                                     fmt::join(EventsOf(v1::Webhook::OPENAI, {}), ", ")));
}

// To the second, within what a time can be.
int64_t SinceOf(const v1::ReplayWebhookRequest& request) {
  constexpr int64_t kYear9999 = 253'402'300'799;
  return std::clamp<int64_t>(request.since().seconds(), 0, kYear9999) * 1'000'000;
}

}  // namespace

absl::Status Webhooks::CheckMail(const std::string& url) const {
  if (!url.starts_with(store::kMailScheme)) {
    return InvalidArgument("the address of mail is like mailto:ann@example.com");
  }
  const std::string problem = mail_.Problem(url.substr(store::kMailScheme.size()));
  if (problem.empty()) return absl::OkStatus();
  return mail_.sends ? InvalidArgument(problem) : FailedPrecondition(problem);
}

absl::StatusOr<v1::AddWebhookResponse> Webhooks::Add(const std::string& project,
                                                     const v1::AddWebhookRequest& request,
                                                     const Actor& actor) {
  SFT_RETURN_IF_ERROR(CheckEvents(request, !project.empty()));
  if (request.url().size() > kLongestUrl) {
    return InvalidArgument(fmt::format("an address has at most {} bytes", kLongestUrl));
  }
  const bool slack = request.format() == v1::Webhook::SLACK;
  const bool mail = request.format() == v1::Webhook::MAIL;
  SFT_RETURN_IF_ERROR(mail ? CheckMail(request.url()) : guard_.Check(request.url()).status());
  WebhookRecord hook;
  hook.id = RandomId("hook");
  hook.project = project;
  hook.url = slack ? hub::OriginOf(request.url()) + "/..." : request.url();
  hook.format = mail    ? WebhookFormat::kMail
                : slack ? WebhookFormat::kSlack
                        : WebhookFormat::kStandard;
  hook.events = EventsOf(request.format(), request.events());
  hook.created_by = actor.name;
  hook.created_us = now_us();
  v1::AddWebhookResponse response;
  if (hook.format == WebhookFormat::kStandard) response.set_secret(MakeWebhookSecret());
  if (!mail) {
    SFT_RETURN_IF_ERROR(
        secrets_.Put(hook.id, slack ? request.url() : response.secret(), hook.created_us));
  }
  const absl::Status added =
      store_.Write([&](Database& db) { return store::InsertWebhook(db, hook); }, actor.audit);
  if (!added.ok()) {
    const absl::Status removed = secrets_.Remove(hook.id);
    return removed.ok() ? added : removed;
  }
  *response.mutable_webhook() = ToProto(hook);
  return response;
}

absl::StatusOr<v1::ListWebhooksResponse> Webhooks::List(const std::string& project) {
  v1::ListWebhooksResponse response;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<WebhookRecord> hooks, store::ListWebhooks(db, project));
    for (const WebhookRecord& hook : hooks) *response.add_webhooks() = ToProto(hook);
    return absl::OkStatus();
  }));
  return response;
}

absl::StatusOr<v1::ListWebhookDeliveriesResponse> Webhooks::Deliveries(const std::string& project,
                                                                       const std::string& id,
                                                                       int64_t before, int limit,
                                                                       int64_t& last_sequence) {
  v1::ListWebhookDeliveriesResponse response;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const WebhookRecord hook, store::GetWebhook(db, project, id));
    SFT_ASSIGN_OR_RETURN(const std::vector<DeliveryRecord> deliveries,
                         store::ListDeliveries(db, id, before, limit));
    for (const DeliveryRecord& delivery : deliveries) {
      *response.add_deliveries() = ToProto(delivery, hook);
      last_sequence = delivery.sequence;
    }
    return absl::OkStatus();
  }));
  return response;
}

absl::StatusOr<v1::WebhookDelivery> Webhooks::Test(const std::string& project,
                                                   const std::string& id, const Actor& actor) {
  v1::WebhookDelivery queued;
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(const WebhookRecord hook, store::GetWebhook(db, project, id));
        SFT_ASSIGN_OR_RETURN(const int64_t tests, store::CountWaiting(db, id, store::kTestEvent));
        if (tests >= kMaxTests) {
          return ResourceExhausted(
              fmt::format("{} tests of it wait already: `sftctl webhook deliveries {}` shows what "
                          "becomes of them",
                          tests, id));
        }
        SFT_RETURN_IF_ERROR(store::SwitchOn(db, id));
        SFT_ASSIGN_OR_RETURN(const std::string sent, store::TellTest(db, id, project, now_us()));
        SFT_ASSIGN_OR_RETURN(const DeliveryRecord delivery, store::GetDelivery(db, id, sent));
        queued = ToProto(delivery, hook);
        return absl::OkStatus();
      },
      actor.audit));
  wake_();
  return queued;
}

absl::StatusOr<v1::ReplayWebhookResponse> Webhooks::Replay(const std::string& project,
                                                           const v1::ReplayWebhookRequest& request,
                                                           const Actor& actor) {
  v1::ReplayWebhookResponse response;
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        const std::string& id = request.id();
        SFT_RETURN_IF_ERROR(store::GetWebhook(db, project, id).status());
        if (!request.delivery().empty()) {
          SFT_RETURN_IF_ERROR(store::GetDelivery(db, id, request.delivery()).status());
        }
        SFT_RETURN_IF_ERROR(store::SwitchOn(db, id));
        SFT_ASSIGN_OR_RETURN(const int64_t count,
                             store::Replay(db, id, request.delivery(), SinceOf(request), now_us()));
        response.set_deliveries(count);
        return absl::OkStatus();
      },
      actor.audit));
  wake_();
  return response;
}

absl::StatusOr<v1::RotateWebhookResponse> Webhooks::Rotate(const std::string& project,
                                                           const std::string& id,
                                                           const Actor& actor) {
  v1::RotateWebhookResponse response;
  response.set_secret(MakeWebhookSecret());
  const MutexLock changing(changing_);
  // The row says that it is there, and takes the audit; the secret is a file.
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(const WebhookRecord hook, store::GetWebhook(db, project, id));
        if (hook.of_jobs && hook.created_by != actor.name) {
          return PermissionDenied(fmt::format(
              "jobs of {} alone send to it: its secret is told to no one else", hook.created_by));
        }
        if (hook.format == WebhookFormat::kStandard) return absl::OkStatus();
        return FailedPrecondition(
            hook.format == WebhookFormat::kMail
                ? "mail has no secret"
                : "a webhook in Slack's format has no secret but its address: remove it and add "
                  "another");
      },
      actor.audit));
  SFT_RETURN_IF_ERROR(secrets_.Put(id, response.secret(), now_us()));
  return response;
}

absl::Status Webhooks::Remove(const std::string& project, const std::string& id,
                              const Actor& actor) {
  const MutexLock changing(changing_);
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_RETURN_IF_ERROR(store::GetWebhook(db, project, id).status());
        return store::DeleteWebhook(db, id);
      },
      actor.audit));
  return secrets_.Remove(id);
}

}  // namespace sft::server
