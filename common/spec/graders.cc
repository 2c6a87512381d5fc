#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common/grade/metric.h"
#include "common/spec/draft.h"
#include "common/spec/grader.h"

// Names of metrics and their pattern: known when a job is submitted, not hours later.

namespace sft::spec {

std::vector<std::string> ListOf(const Draft& draft, std::string_view key) {
  const DraftEntry* entry = draft.Find(key);
  const auto* list =
      entry == nullptr ? nullptr : std::get_if<std::vector<std::string>>(&entry->value);
  return list == nullptr ? std::vector<std::string>() : *list;
}

void CheckGraders(Draft* draft, const GraderKeys& keys) {
  if (draft->Faulty({keys.metrics, keys.pattern})) return;
  const std::string pattern = draft->Has(keys.pattern) ? draft->String(keys.pattern) : "";
  const std::vector<std::string> metrics = ListOf(*draft, keys.metrics);
  const bool reads_pattern = std::find(metrics.begin(), metrics.end(), "regex") != metrics.end();
  if (!pattern.empty() && !reads_pattern) {
    return draft->AddProblem(
        keys.pattern,
        fmt::format("is read by the metric regex alone: name that in {}", keys.metrics));
  }
  if (reads_pattern && pattern.empty()) {
    return draft->AddProblem(keys.metrics,
                             fmt::format("regex reads a pattern: set {}", keys.pattern));
  }
  if (reads_pattern) {
    const auto made = grade::Pattern::Make(pattern);
    if (!made.ok()) return draft->AddProblem(keys.pattern, std::string(Message(made.status())));
  }
  const auto grader = grade::Grader::Make(metrics, pattern);
  if (!grader.ok()) draft->AddProblem(keys.metrics, std::string(Message(grader.status())));
}

void CheckGraderPrograms(std::string_view key, Draft* draft) {
  if (draft->Faulty({key})) return;
  std::set<std::string> names;
  for (const std::string& item : ListOf(*draft, key)) {
    const absl::StatusOr<Grader> grader = ParseGrader(item);
    if (!grader.ok()) return draft->AddProblem(key, std::string(Message(grader.status())));
    if (!names.insert(grader->name).second) {
      return draft->AddProblem(key, fmt::format("two graders are called \"{}\"", grader->name));
    }
  }
}

}  // namespace sft::spec
