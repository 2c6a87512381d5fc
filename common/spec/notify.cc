#include <fmt/format.h>

#include <algorithm>

#include "common/base/mail_address.h"
#include "common/spec/draft.h"

namespace sft::spec {
namespace {

constexpr std::string_view kMail = "notify.mail", kEvents = "notify.events";
// What a webhook may be told of a job (docs/webhooks.md).
constexpr std::string_view kOfJobs[] = {"job.queued",    "job.started",         "job.succeeded",
                                        "job.failed",    "job.cancelled",       "job.restarted",
                                        "job.preempted", "checkpoint.committed"};

const std::vector<std::string>* ListOf(Draft* draft, std::string_view key) {
  if (!draft->Has(key) || draft->Faulty({key})) return nullptr;
  return &std::get<std::vector<std::string>>(draft->Find(key)->value);
}

}  // namespace

void ResolveNotify(Draft* draft) {
  const std::vector<std::string>* addresses = ListOf(draft, kMail);
  for (const std::string& address :
       addresses == nullptr ? std::vector<std::string>() : *addresses) {
    if (IsMailAddress(address)) continue;
    draft->AddProblem(kMail, fmt::format("\"{}\" is not the address of a mailbox such as "
                                         "ann@example.com",
                                         address.substr(0, 254)));
    break;
  }
  const std::vector<std::string>* events = ListOf(draft, kEvents);
  if (events == nullptr) return;
  for (const std::string& event : *events) {
    if (std::ranges::find(kOfJobs, event) != std::end(kOfJobs)) continue;
    std::string names;
    for (const std::string_view name : kOfJobs)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    draft->AddProblem(kEvents,
                      fmt::format("\"{}\" is no event of a job: {}", event.substr(0, 80), names));
    break;
  }
  if (addresses == nullptr || addresses->empty()) {
    draft->AddWarning(kEvents, "has no effect without notify.mail");
  }
}

}  // namespace sft::spec
