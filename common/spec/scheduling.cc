#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/spec/draft.h"

namespace sft::spec {
namespace {

constexpr std::string_view kAfter = "scheduling.after", kDeadline = "scheduling.deadline",
                           kLimit = "scheduling.time_limit", kWarn = "scheduling.warn_before";
// The most jobs that one job may wait for.
constexpr size_t kMaxAfter = 100;

bool IsJobId(const std::string& id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_';
  });
}

void CheckAfter(Draft* draft) {
  if (!draft->Has(kAfter) || draft->Faulty({kAfter})) return;
  const auto& ids = std::get<std::vector<std::string>>(draft->Find(kAfter)->value);
  if (ids.size() > kMaxAfter) {
    draft->AddProblem(
        kAfter, fmt::format("names {} jobs; a job waits for at most {}", ids.size(), kMaxAfter));
  }
  for (const std::string& id : ids) {
    if (IsJobId(id)) continue;
    draft->AddProblem(
        kAfter,
        fmt::format("\"{}\" is not the id of a job, as `sftctl list` shows it", id.substr(0, 128)));
    return;
  }
}

}  // namespace

void ResolveScheduling(Draft* draft) {
  CheckAfter(draft);
  const std::string deadline = draft->Has(kDeadline) ? draft->String(kDeadline) : "";
  if (!deadline.empty() && !ParseUtc(deadline)) {
    draft->AddProblem(kDeadline, fmt::format("\"{}\" is not a time in UTC such as "
                                             "\"2026-12-01T08:00:00Z\"",
                                             deadline));
  }
  if (!draft->Has(kLimit) || draft->Faulty({kLimit, kWarn})) return;
  const auto limit = ParseDuration(draft->String(kLimit));
  if (!limit || limit->count() == 0) return;
  const auto warn = draft->Has(kWarn) ? ParseDuration(draft->String(kWarn)) : std::nullopt;
  if (warn && *warn >= *limit) {
    draft->AddProblem(kWarn, fmt::format("must be shorter than {}", draft->Quote(kLimit)));
  }
  if (!warn && *limit < std::chrono::minutes(10)) {
    draft->Derive(kWarn, fmt::format("{}s", limit->count() / 2), "scheduling.time_limit");
  }
}

}  // namespace sft::spec
