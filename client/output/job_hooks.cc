#include "client/output/job_hooks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "client/output/format.h"
#include "client/output/text.h"

namespace sft::client {

Json JobHooksJson(const v1::Job& job) {
  Json hooks = Json::array();
  for (const v1::JobHook& hook : job.hooks()) {
    Json& added = hooks.emplace_back(Json{
        {"webhook", hook.webhook()},
        {"url", hook.url()},
        {"events", std::vector<std::string>(hook.events().begin(), hook.events().end())},
        {"off_time", hook.has_off_time() ? Json(Utc(hook.off_time())) : Json(nullptr)},
        {"off_reason", hook.off_reason()},
        {"failures", hook.failures()},
        {"last_delivery_time",
         hook.has_last_delivery_time() ? Json(Utc(hook.last_delivery_time())) : Json(nullptr)}});
    if (!hook.secret().empty()) added["secret"] = hook.secret();
  }
  return hooks;
}

std::string JobHookText(const v1::JobHook& hook) {
  const std::string events =
      hook.events().empty() ? "all events" : fmt::format("{}", fmt::join(hook.events(), ", "));
  std::string text = fmt::format("{} ({}): {}", hook.url(), hook.webhook(), events);
  if (hook.has_off_time()) return text + "; off: " + hook.off_reason();
  if (hook.failures() > 0) return text + fmt::format("; failing ({})", hook.failures());
  if (hook.has_last_delivery_time()) {
    text += "; last took something " + Utc(hook.last_delivery_time());
  }
  return text;
}

void PrintSecrets(std::ostream& out, const v1::Job& job) {
  for (const v1::JobHook& hook : job.hooks()) {
    if (hook.url().starts_with("mailto:")) continue;
    if (!hook.secret().empty()) {
      out << fmt::format(
          "{} tells {} of it; the receiver knows it by the secret {}, which is not shown again\n",
          OneLine(hook.webhook()), OneLine(hook.url()), OneLine(hook.secret()));
    } else {
      out << fmt::format(
          "{} tells {} of it, with the secret that was shown when it was made; `sftctl webhook "
          "rotate {}` makes another\n",
          OneLine(hook.webhook()), OneLine(hook.url()), OneLine(hook.webhook()));
    }
  }
}

}  // namespace sft::client
