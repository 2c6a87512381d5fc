#include "common/grade/metric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/grade/ngrams.h"
#include "common/grade/rouge.h"
#include "common/grade/words.h"

namespace sft::grade {
namespace {

constexpr std::string_view kRegex = "regex";

constexpr Metric kMetrics[] = {
    {"exact_match", "answers that equal the reference, but for white space at both ends",
     MetricKind::kPass},
    {"normalized_match",
     "the same in lower case, without punctuation, a, an and the, as SQuAD has it",
     MetricKind::kPass},
    {"contains", "answers that hold the reference", MetricKind::kPass},
    {"number", "answers whose last number, or the one after ####, is that of the reference",
     MetricKind::kPass},
    {kRegex, "answers that match the job's pattern; with a group, whose group is the reference",
     MetricKind::kPass},
    {"json_valid", "answers that are JSON", MetricKind::kPass},
    {"json", "answers that are the reference's value in JSON", MetricKind::kPass},
    {"f1", "overlap of words, as SQuAD has it"},
    {"rouge_1", "ROUGE-1 F1, no stemmer"},
    {"rouge_2", "ROUGE-2 F1, no stemmer"},
    {"rouge_l", "ROUGE-L F1, no stemmer"},
    {"rouge_lsum", "ROUGE-Lsum F1 of lines, no stemmer"},
    {"bleu", "BLEU, nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp", MetricKind::kCorpus, true,
     2 + 2 * kBleuOrder},
    {"chrf", "chrF2, nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no", MetricKind::kCorpus, true,
     3 * kChrfOrder},
    {"loss", "mean over the references' tokens, as in training", MetricKind::kLoss, false},
    {"perplexity", "the exponential of the loss", MetricKind::kLoss, false},
    {"bits_per_byte", "the loss by the references' bytes: comparable over tokenizers",
     MetricKind::kLoss, false},
};

Grader::Sums Passed(bool passes) { return {passes ? 1.0 : 0.0, 1.0}; }

absl::StatusOr<Grader::Sums> Passed(const absl::StatusOr<bool>& passes) {
  if (!passes.ok()) return passes.status();
  return Passed(*passes);
}

Grader::Sums F1Of(const RougeScore& score) { return {score.f1, 1.0}; }

absl::StatusOr<Grader::Sums> F1Of(const absl::StatusOr<RougeScore>& score) {
  if (!score.ok()) return score.status();
  return F1Of(*score);
}

template <size_t N>
Grader::Sums ListOf(const std::array<double, N>& counts) {
  return {counts.begin(), counts.end()};
}

}  // namespace

std::span<const Metric> Metrics() { return kMetrics; }

const Metric* FindMetric(std::string_view name) {
  const auto* found = std::find_if(std::begin(kMetrics), std::end(kMetrics),
                                   [&](const Metric& metric) { return metric.name == name; });
  return found == std::end(kMetrics) ? nullptr : found;
}

std::string AnswerMetricNames() {
  std::string names;
  for (const Metric& metric : kMetrics) {
    if (metric.kind == MetricKind::kLoss) continue;
    names += (names.empty() ? "" : ", ") + std::string(metric.name);
  }
  return names;
}

std::optional<double> ValueOf(const Metric& metric, std::span<const double> sums) {
  if (metric.name == "bleu") return BleuScore(sums);
  if (metric.name == "chrf") return ChrfScore(sums);
  if (sums[1] == 0) return std::nullopt;
  const double mean = sums[0] / sums[1];
  if (metric.name == "perplexity") return std::exp(mean);
  if (metric.name == "bits_per_byte") return mean / std::log(2.0);
  return metric.kind == MetricKind::kLoss ? mean : 100 * mean;
}

absl::StatusOr<Grader> Grader::Make(const std::vector<std::string>& metrics,
                                    const std::string& expression) {
  Grader grader;
  for (const std::string& name : metrics) {
    const Metric* metric = FindMetric(name);
    if (metric == nullptr || metric->kind == MetricKind::kLoss) {
      return InvalidArgument(
          fmt::format("\"{}\" is no metric of answers; there are {}", name, AnswerMetricNames()));
    }
    const auto& known = grader.metrics_;
    if (std::find(known.begin(), known.end(), metric) != known.end()) {
      return InvalidArgument(fmt::format("\"{}\" is there twice", name));
    }
    grader.metrics_.push_back(metric);
    if (name != kRegex) continue;
    if (expression.empty()) return InvalidArgument("\"regex\" needs a pattern");
    absl::StatusOr<Pattern> pattern = Pattern::Make(expression);
    if (!pattern.ok()) return pattern.status();
    grader.pattern_.emplace(*std::move(pattern));
  }
  return grader;
}

absl::StatusOr<Grader::Sums> Grader::GradeBy(const Metric& metric, std::string_view answer,
                                             std::string_view reference) const {
  const std::string_view name = metric.name;
  if (name == "exact_match") return Passed(ExactMatch(answer, reference));
  if (name == "normalized_match") return Passed(Normalized(answer) == Normalized(reference));
  if (name == "contains") return Passed(answer.find(Strip(reference)) != answer.npos);
  if (name == "number") return Passed(SameNumber(answer, reference));
  if (name == kRegex) return Passed(pattern_->Passes(answer, reference));
  if (name == "json_valid") return Passed(IsJson(answer));
  if (name == "json") return Passed(SameJson(answer, reference));
  if (name == "f1") return Sums{WordF1(answer, reference), 1.0};
  if (name == "rouge_1") return F1Of(RougeN(answer, reference, 1));
  if (name == "rouge_2") return F1Of(RougeN(answer, reference, 2));
  if (name == "rouge_l") return F1Of(RougeL(answer, reference));
  if (name == "rouge_lsum") return F1Of(RougeLsum(answer, reference));
  if (name == "bleu") return ListOf(CountBleu(answer, reference));
  return ListOf(CountChrf(answer, reference));
}

std::vector<absl::StatusOr<Grader::Sums>> Grader::Grade(std::string_view answer,
                                                        std::string_view reference) const {
  std::vector<absl::StatusOr<Sums>> grades;
  grades.reserve(metrics_.size());
  for (const Metric* metric : metrics_) grades.push_back(GradeBy(*metric, answer, reference));
  return grades;
}

}  // namespace sft::grade
