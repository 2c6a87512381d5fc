#include "server/webhooks/webhook_sender.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/obs/log.h"

namespace sft::server {
namespace {

using store::DeliveryRecord;
using store::DeliveryState;
using store::WebhookFormat;
using store::WebhookRecord;
using Json = nlohmann::json;

constexpr int64_t kSecondUs = 1'000'000;
constexpr size_t kMostError = 300;

std::string TextAt(const Json& json, const char* pointer) {
  const Json::json_pointer at(pointer);
  if (!json.is_object() || !json.contains(at)) return "";
  const Json& value = json.at(at);
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

bool IsTaken(const WebhookAnswer& answer) { return answer.status / 100 == 2; }

std::string GoneText(const WebhookRecord& hook, const std::string& said) {
  return hook.format == WebhookFormat::kMail ? Plain(said, kMostError)
                                             : "the receiver answered 410: it is gone";
}

// What Slack reads as signs of its own.
std::string ForSlack(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return escaped;
}

}  // namespace

std::string SlackBody(const std::string& body) {
  const Json event = ParseJson(body);
  std::string text = TextAt(event, "/type");
  const auto add = [&](const char* label, const char* pointer) {
    const std::string value = TextAt(event, pointer);
    if (!value.empty()) text += fmt::format("{}{}", label, value);
  };
  add(": ", "/data/id");
  add(" ", "/data/display_name");
  add(" of project ", "/data/project");
  add(", by ", "/data/owner");
  add(", step ", "/data/step");
  add(": ", "/data/verdict/code");
  add(": node ", "/data/node");
  add(", ", "/data/reason");
  add(": bytes free ", "/data/free_bytes");
  return DumpJson(Json{{"text", ForSlack(text)}});
}

void WebhookSender::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void WebhookSender::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void WebhookSender::Wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void WebhookSender::Loop() {
  obs::NameThread("webhooks");
  std::string last_error;
  while (true) {
    const absl::StatusOr<bool> stepped = Step();
    // Logged once: a full disk may last.
    std::string error = stepped.ok() ? "" : std::string(Message(stepped.status()));
    if (error != last_error && !error.empty()) spdlog::error("webhooks: {}", error);
    last_error = std::move(error);
    MutexLock lock(mutex_);
    const bool more = stepped.ok() && *stepped;
    if (!more && !woken_ && !stopping_) changed_.WaitFor(mutex_, kPeriod);
    woken_ = false;
    if (stopping_) return;
  }
}

absl::StatusOr<bool> WebhookSender::Step() {
  if (!unsettled_.has_value()) {
    SFT_ASSIGN_OR_RETURN(unsettled_, TryNext());
    if (!unsettled_.has_value()) return false;
  }
  const absl::Status settled = store_.Write([&](Database& db) { return Settle(db, *unsettled_); });
  // Removed meanwhile.
  if (!settled.ok() && !absl::IsNotFound(settled)) return settled;
  unsettled_.reset();
  return true;
}

absl::StatusOr<std::optional<WebhookSender::Tried>> WebhookSender::TryNext() {
  std::optional<Tried> next;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    const int64_t now_us = UnixMicros(clock_.Wall());
    SFT_ASSIGN_OR_RETURN(const std::vector<WebhookRecord> ready, store::ReadyHooks(db, now_us));
    // The first of those of the same project was tried longest ago.
    const auto hook = std::ranges::min_element(ready, {}, [this](const WebhookRecord& each) {
      const auto turn = turns_.find(each.project);
      return turn == turns_.end() ? MonoTime::min() : turn->second;
    });
    if (hook == ready.end()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(std::optional<DeliveryRecord> delivery,
                         store::NextDelivery(db, hook->id, now_us));
    if (delivery.has_value()) next = Tried{*hook, *std::move(delivery), WebhookAnswer()};
    return absl::OkStatus();
  }));
  if (!next.has_value()) return next;
  const MonoTime begin = clock_.Mono();
  next->answer = Try(next->hook, next->delivery);
  next->took = clock_.Mono() - begin;
  next->at_us = UnixMicros(clock_.Wall());
  turns_[next->hook.project] = begin + next->took * kSlowCounts;
  return next;
}

absl::StatusOr<WebhookAnswer> WebhookSender::Try(const WebhookRecord& hook,
                                                 const DeliveryRecord& delivery) const {
  if (hook.format == WebhookFormat::kMail) return TryMail(hook, delivery);
  const int64_t now_us = UnixMicros(clock_.Wall()), seconds = now_us / kSecondUs;
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> secrets, secrets_.Get(hook.id, now_us));
  if (secrets.empty()) return FailedPrecondition("its secret is empty");
  WebhookPost post{hook.url, {{"Content-Type", "application/json"}}, delivery.body};
  if (hook.format == WebhookFormat::kSlack) {
    post.url = secrets.front();
    post.body = SlackBody(delivery.body);
  } else {
    post.headers.emplace_back("webhook-id", delivery.id);
    post.headers.emplace_back("webhook-timestamp", std::to_string(seconds));
    post.headers.emplace_back("webhook-signature",
                              SignWebhook(secrets, delivery.id, seconds, delivery.body));
  }
  return transport_.Post(post);
}

absl::StatusOr<WebhookAnswer> WebhookSender::TryMail(const WebhookRecord& hook,
                                                     const DeliveryRecord& delivery) const {
  if (mail_ == nullptr) {
    return FailedPrecondition("this server sends no mail any more: it has no --mail-relay");
  }
  Mail mail = MailOf(delivery.body);
  mail.id = delivery.id;
  mail.to = hook.url.substr(store::kMailScheme.size());
  mail.date = clock_.Wall();
  return mail_->Send(mail);
}

absl::Status WebhookSender::Settle(Database& db, const Tried& tried) {
  const absl::StatusOr<WebhookAnswer>& answer = tried.answer;
  SFT_ASSIGN_OR_RETURN(WebhookRecord hook, store::FindWebhook(db, tried.hook.id));
  DeliveryRecord delivery = tried.delivery;
  ++delivery.tries;
  delivery.last_us = tried.at_us;
  delivery.status = answer.ok() ? answer->status : 0;
  delivery.error = Plain(
      answer.ok() ? (IsTaken(*answer) ? "" : answer->said) : std::string(Message(answer.status())),
      kMostError);
  hook.tried_us = tried.at_us;
  const auto rest = std::chrono::duration_cast<std::chrono::microseconds>(kSlowCounts * tried.took);
  hook.rest_until_us = tried.took > kSlow ? tried.at_us + rest.count() : 0;
  if (!answer.ok() || !IsTaken(*answer)) return SettleFailure(db, tried, hook, delivery);
  delivery.state = DeliveryState::kDelivered;
  SFT_RETURN_IF_ERROR(store::UpdateDelivery(db, delivery));
  hook.failures = 0;
  hook.delivered_us = tried.at_us;
  return store::UpdateWebhook(db, hook);
}

absl::Status WebhookSender::SettleFailure(Database& db, const Tried& tried, WebhookRecord& hook,
                                          DeliveryRecord& delivery) {
  const bool gone = tried.answer.ok() && tried.answer->gone;
  const bool final = tried.answer.ok() && tried.answer->final;
  const bool last = delivery.tries > static_cast<int>(std::size(kDelaysS));
  const int64_t asked_s = tried.answer.ok() && !gone ? tried.answer->retry_after_s : 0;
  const int64_t asked_us = std::min(asked_s, kLongestRetryAfterS) * kSecondUs;
  // Doubled no more often than it takes to reach the most.
  const int64_t rest_s = std::min(kRestS << std::min(hook.failures, 10), kLongestRestS);
  ++hook.failures;
  hook.rest_until_us =
      std::max(hook.rest_until_us, tried.at_us + std::max(rest_s * kSecondUs, asked_us));
  if (gone || final || last) {
    delivery.state = DeliveryState::kFailed;
  } else {
    const auto delay_us =
        static_cast<double>(kDelaysS[static_cast<size_t>(delivery.tries) - 1] * kSecondUs);
    delivery.next_us =
        tried.at_us + std::max(static_cast<int64_t>(delay_us * (1 + chance_() / 5)), asked_us);
  }
  SFT_RETURN_IF_ERROR(store::UpdateDelivery(db, delivery));
  // What fails alone, while others are taken, is not the receiver's end.
  if (!gone && !(last && hook.delivered_us < delivery.created_us)) {
    return store::UpdateWebhook(db, hook);
  }
  const std::string reason =
      gone ? GoneText(hook, tried.answer->said)
           : fmt::format("nothing was taken for {} hours: {}",
                         (tried.at_us - delivery.created_us) / (3600 * kSecondUs), delivery.error);
  spdlog::warn("webhook {} is off: {}; `sftctl webhook test {}` turns it on", hook.id, reason,
               hook.id);
  return store::SwitchOff(db, hook, reason, tried.at_us);
}

}  // namespace sft::server
