#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/mail_address.h"
#include "common/spec/draft.h"

namespace sft::spec {
namespace {

constexpr std::string_view kMail = "notify.mail", kWebhook = "notify.webhook",
                           kEvents = "notify.events";
constexpr size_t kLongestUrl = 2000;
// What a webhook may be told of a job (docs/webhooks.md).
constexpr std::string_view kOfJobs[] = {"job.queued",
                                        "job.started",
                                        "job.succeeded",
                                        "job.failed",
                                        "job.cancelled",
                                        "job.restarted",
                                        "job.preempted",
                                        "checkpoint.committed",
                                        "fine_tuning.job.succeeded",
                                        "fine_tuning.job.failed",
                                        "fine_tuning.job.cancelled"};

}  // namespace

void ResolveNotify(Draft* draft) {
  if (draft->Faulty({kMail, kWebhook, kEvents})) return;
  const std::vector<std::string> addresses = ListOf(*draft, kMail);
  const auto bad = std::ranges::find_if_not(
      addresses, [](const std::string& address) { return IsMailAddress(address); });
  if (bad != addresses.end()) {
    draft->AddProblem(kMail, fmt::format("\"{}\" is not the address of a mailbox such as "
                                         "ann@example.com",
                                         bad->substr(0, 254)));
  }
  const std::string webhook = draft->Has(kWebhook) ? draft->String(kWebhook) : "";
  if (webhook.starts_with("mailto:")) {
    draft->AddProblem(kWebhook, "is an address by HTTP: notify.mail takes those of mailboxes");
  } else if (!webhook.empty() && !webhook.starts_with("https://") &&
             !webhook.starts_with("http://")) {
    draft->AddProblem(kWebhook, fmt::format("\"{}\" is no address such as "
                                            "https://example.com/hooks/sft",
                                            webhook.substr(0, 80)));
  } else if (webhook.size() > kLongestUrl) {
    draft->AddProblem(kWebhook, fmt::format("an address has at most {} bytes", kLongestUrl));
  }
  if (!draft->Given(kEvents)) return;
  if (addresses.empty() && webhook.empty()) {
    draft->AddWarning(kEvents, "has no effect without notify.mail or notify.webhook");
  }
  for (const std::string& event : ListOf(*draft, kEvents)) {
    if (std::ranges::find(kOfJobs, event) != std::end(kOfJobs)) continue;
    draft->AddProblem(kEvents, fmt::format("\"{}\" is no event of a job: {}", event.substr(0, 80),
                                           fmt::join(kOfJobs, ", ")));
    return;
  }
}

}  // namespace sft::spec
