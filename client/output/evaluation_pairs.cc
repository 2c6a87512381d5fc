#include "client/output/evaluation_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "client/output/evaluation.h"
#include "client/output/members.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace sft::client {
namespace {

using MetricSums = std::vector<double>;

const Json& AnsweredSide(const Json& row) {
  static const Json none = Json::object();
  for (const char* side : {"tuned", "base"}) {
    if (row.is_object() && row.contains(side)) return row.at(side);
  }
  return none;
}

// By what a row of one evaluation is found in another.
using RowKey = std::tuple<std::string, std::string, int64_t>;
using RowsByKey = std::map<RowKey, const Json*>;
class RowKeys {
 public:
  // Where all rows with the same line have the same reference, the data are the same and a row is
  // its line: templates of other models or days print its prompt in another way. Else the prompt
  // has to be the same, too.
  explicit RowKeys(const std::vector<EvaluationRows>& all) {
    std::map<int64_t, std::string> references;
    for (const Json& row : all.front().rows)
      references[CountOf(row, "line")] = TextOf(row, "reference");
    for (size_t i = 1; i < all.size(); ++i) {
      for (const Json& row : all[i].rows) {
        const auto found = references.find(CountOf(row, "line"));
        by_prompt_ |= found != references.end() && found->second != TextOf(row, "reference");
      }
    }
  }

  RowKey Of(const Json& row) const {
    return {by_prompt_ ? TextOf(row, "prompt") : "", TextOf(row, "reference"),
            CountOf(row, "line")};
  }
  RowsByKey Of(const std::vector<Json>& rows) const {
    RowsByKey found;
    for (const Json& row : rows) found.emplace(Of(row), &row);
    return found;
  }

 private:
  bool by_prompt_ = false;
};

// What the row adds to the metric; nothing where it was not graded by it.
std::optional<MetricSums> PairSums(const grade::Metric& metric, const grade::Grader* grader,
                                   const Json& row) {
  const Json& side = AnsweredSide(row);
  if (metric.kind == grade::MetricKind::kLoss) {
    const auto nll = NumberOf(side, "nll");
    const auto by =
        NumberOf(row, metric.name == "bits_per_byte" ? "reference_bytes" : "reference_tokens");
    if (!nll || !by) return std::nullopt;
    return MetricSums{*nll, *by};
  }
  // The sums of a corpus do not follow from its rows' scores.
  if (grader != nullptr) {
    auto graded = grader->Grade(TextOf(side, "answer"), TextOf(row, "reference"));
    if (!graded.front().ok()) return std::nullopt;
    return *std::move(graded.front());
  }
  const auto score =
      NumberOf(side.value("scores", Json::object()), std::string(metric.name).c_str());
  if (!score) return std::nullopt;
  return MetricSums{*score / 100, 1};
}

std::vector<std::string> MetricNames(const Json& report) {
  std::vector<std::string> names;
  const auto metrics = report.is_object() ? report.find("metrics") : report.end();
  if (!report.is_object() || metrics == report.end() || !metrics->is_array()) return names;
  for (const Json& metric : *metrics) {
    if (std::string name = TextOf(metric, "name"); !name.empty()) names.push_back(std::move(name));
  }
  return names;
}

EvaluationDifference DifferenceOf(const std::string& name, const RowKeys& keys,
                                  const RowsByKey& first, const EvaluationRows& other) {
  // A grader of the job's own gives scores, of which the mean counts.
  const grade::Metric* const known = grade::FindMetric(name);
  const grade::Metric metric = known != nullptr ? *known : grade::Metric{.name = name, .doc = ""};
  std::optional<grade::Grader> grader;
  if (metric.kind == grade::MetricKind::kCorpus) {
    if (auto made = grade::Grader::Make({name}, ""); made.ok()) grader.emplace(*std::move(made));
  }
  std::vector<grade::PairedSums> pairs;
  for (const Json& row : other.rows) {
    const auto same = first.find(keys.Of(row));
    if (same == first.end()) continue;
    auto a = PairSums(metric, grader ? &*grader : nullptr, *same->second);
    auto b = PairSums(metric, grader ? &*grader : nullptr, row);
    if (a && b) pairs.push_back({*std::move(a), *std::move(b)});
  }
  return {other.label, name, metric.kind == grade::MetricKind::kPass,
          grade::Compare(metric, pairs)};
}

std::string SignedFigure(double value) {
  if (!std::isfinite(value)) return "-";
  return fmt::format("{:+.{}f}", value, std::abs(value) < 10 ? 4 : 2);
}

Json FiniteJson(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// The rows of the first evaluation that all others have, with those of the others.
std::vector<std::vector<const Json*>> CommonRows(const std::vector<EvaluationRows>& all,
                                                 int count) {
  const RowKeys keys(all);
  std::vector<RowsByKey> others;
  for (size_t i = 1; i < all.size(); ++i) others.push_back(keys.Of(all[i].rows));
  std::vector<std::vector<const Json*>> common;
  for (const Json& row : all.front().rows) {
    if (static_cast<int>(common.size()) >= count) break;
    std::vector<const Json*> same = {&row};
    for (const RowsByKey& other : others) {
      const auto found = other.find(keys.Of(row));
      if (found != other.end()) same.push_back(found->second);
    }
    if (same.size() == all.size()) common.push_back(std::move(same));
  }
  return common;
}

}  // namespace

std::vector<EvaluationDifference> DifferencesToFirst(const std::vector<EvaluationRows>& all) {
  std::vector<EvaluationDifference> differences;
  const RowKeys keys(all);
  const RowsByKey first = keys.Of(all.front().rows);
  const std::vector<std::string> names = MetricNames(all.front().report);
  for (size_t i = 1; i < all.size(); ++i) {
    const std::vector<std::string> others = MetricNames(all[i].report);
    for (const std::string& name : names) {
      if (std::ranges::find(others, name) == others.end()) continue;
      EvaluationDifference difference = DifferenceOf(name, keys, first, all[i]);
      if (difference.found.rows > 0) differences.push_back(std::move(difference));
    }
  }
  return differences;
}

std::string DifferencesText(const std::string& first,
                            const std::vector<EvaluationDifference>& differences) {
  if (differences.empty())
    return "\nno row and metric are in both evaluations, so no difference has an interval\n";
  Table table({"METRIC", "JOB", "DIFFERENCE", "95 % INTERVAL", "P", "ONLY FIRST/JOB", "ROWS"});
  for (const EvaluationDifference& each : differences) {
    const grade::Comparison& found = each.found;
    table.Add({each.metric, each.label, SignedFigure(found.difference),
               fmt::format("{} to {}", SignedFigure(found.low), SignedFigure(found.high)),
               found.p < 0.0001 ? "<0.0001" : fmt::format("{:.4f}", found.p),
               each.rows_pass ? fmt::format("{}/{}", found.only_base, found.only_tuned) : "",
               std::to_string(found.rows)});
  }
  return fmt::format("\ndifferences to {}, over the rows of both\n", first) + table.Render();
}

Json DifferencesJson(const std::string& first,
                     const std::vector<EvaluationDifference>& differences) {
  Json list = Json::array();
  for (const EvaluationDifference& each : differences) {
    const grade::Comparison& found = each.found;
    list.push_back({{"metric", each.metric},
                    {"job", each.label},
                    {"to", first},
                    {"rows", found.rows},
                    {"difference", FiniteJson(found.difference)},
                    {"low", FiniteJson(found.low)},
                    {"high", FiniteJson(found.high)},
                    {"p", FiniteJson(found.p)}});
    if (!each.rows_pass) continue;
    list.back()["only_to"] = found.only_base;
    list.back()["only_job"] = found.only_tuned;
    if (found.mcnemar_p) list.back()["mcnemar_p"] = *found.mcnemar_p;
  }
  return list;
}

std::string CommonSamplesText(const std::vector<EvaluationRows>& all, int count) {
  size_t width = 9;
  for (const EvaluationRows& each : all) width = std::max(width, each.label.size());
  std::string text;
  for (const auto& rows : CommonRows(all, count)) {
    text += fmt::format("\nline {}\n  {:<{}}  {}\n  {:<{}}  {}\n", CountOf(*rows[0], "line"),
                        "prompt", width, SampleText(TextOf(*rows[0], "prompt")), "reference", width,
                        SampleText(TextOf(*rows[0], "reference")));
    for (size_t i = 0; i < rows.size(); ++i) {
      const Json& side = AnsweredSide(*rows[i]);
      text += fmt::format("  {:<{}}  {}\n  {:<{}}  [{}]\n", all[i].label, width,
                          SampleText(TextOf(side, "answer")), "", width, ScoresText(side));
    }
  }
  return text;
}

Json CommonSamplesJson(const std::vector<EvaluationRows>& all, int count) {
  Json samples = Json::array();
  for (const auto& rows : CommonRows(all, count)) {
    Json answers = Json::array();
    for (size_t i = 0; i < rows.size(); ++i) {
      const Json& side = AnsweredSide(*rows[i]);
      answers.push_back({{"job", all[i].label},
                         {"answer", TextOf(side, "answer")},
                         {"scores", side.value("scores", Json::object())}});
    }
    samples.push_back({{"line", CountOf(*rows[0], "line")},
                       {"prompt", TextOf(*rows[0], "prompt")},
                       {"reference", TextOf(*rows[0], "reference")},
                       {"answers", std::move(answers)}});
  }
  return samples;
}

}  // namespace sft::client
