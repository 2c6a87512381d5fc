#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/grade/match.h"

namespace sft::grade {

enum class MetricKind {
  kPass,    // a row passes or fails
  kMean,    // of the rows' scores
  kCorpus,  // of counts that are added over the rows
  kLoss,    // of the reference's tokens, as training has them: not of the answer
};

// A number that says how good answers are, or how likely references. What each row adds to it is a
// list of sums, so that its value over any rows is that of their sums.
struct Metric {
  std::string_view name;  // as job files, events and tables have it
  std::string_view doc;
  MetricKind kind = MetricKind::kMean;
  bool greater_is_better = true;
  size_t sums = 2;  // how many numbers a row adds
};

// All of them, in the order of tables.
std::span<const Metric> Metrics();
const Metric* FindMetric(std::string_view name);  // null: there is none
// The names of those that look at answers, for messages: "exact_match, f1, ...".
std::string AnswerMetricNames();

// The value over rows that added `sums` together; empty where they say nothing. Passes and means
// are of 100, as BLEU and chrF are.
std::optional<double> ValueOf(const Metric& metric, std::span<const double> sums);

// Grades answers by some metrics of answers.
class Grader {
 public:
  // `expression` is that of the metric "regex", and empty without it. INVALID_ARGUMENT: a name that
  // is none, or is there twice, or an expression that cannot be used.
  static absl::StatusOr<Grader> Make(const std::vector<std::string>& metrics,
                                     const std::string& expression);

  const std::vector<const Metric*>& metrics() const { return metrics_; }

  // What the row adds to each of metrics(). A row that a metric cannot grade has a status in its
  // place, which says why; the others do not mind.
  using Sums = std::vector<double>;
  std::vector<absl::StatusOr<Sums>> Grade(std::string_view answer,
                                          std::string_view reference) const;

 private:
  absl::StatusOr<Sums> GradeBy(const Metric& metric, std::string_view answer,
                               std::string_view reference) const;

  std::vector<const Metric*> metrics_;
  std::optional<Pattern> pattern_;
};

}  // namespace sft::grade
