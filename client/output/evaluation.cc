#include "client/output/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "client/output/members.h"
#include "client/output/table.h"
#include "client/output/text.h"

namespace sft::client {
namespace {

constexpr size_t kLongestText = 600;  // bytes of a sample that are shown

std::string Figure(const Json& object, const char* key, bool is_signed = false) {
  if (!IsNumber(object, key)) return "-";
  const double value = Member(object, key)->get<double>();
  const int digits = std::abs(value) < 10 ? 4 : 2;
  return is_signed ? fmt::format("{:+.{}f}", value, digits) : fmt::format("{:.{}f}", value, digits);
}

std::string Probability(const Json& object, const char* key) {
  if (!IsNumber(object, key)) return "";
  const double value = Member(object, key)->get<double>();
  return value < 0.0001 ? "<0.0001" : fmt::format("{:.4f}", value);
}

const Json& ListOf(const Json& report, const char* key) {
  static const Json none = Json::array();
  const Json* list = Member(report, key);
  return list != nullptr && list->is_array() ? *list : none;
}

bool HasTuned(const Json& report) {
  const Json& metrics = ListOf(report, "metrics");
  return !metrics.empty() && Member(metrics[0], "tuned") != nullptr;
}

void AddMetric(const Json& metric, bool tuned, Table& table) {
  std::vector<std::string> row = {TextOf(metric, "name"), Figure(metric, "base")};
  if (tuned) {
    row.push_back(Figure(metric, "tuned"));
    row.push_back(Figure(metric, "difference", true));
    row.push_back(
        fmt::format("{} to {}", Figure(metric, "low", true), Figure(metric, "high", true)));
    row.push_back(Probability(metric, "p"));
    row.push_back(IsNumber(metric, "only_base") ? fmt::format("{}/{}", CountOf(metric, "only_base"),
                                                              CountOf(metric, "only_tuned"))
                                                : "");
    row.push_back(Probability(metric, "mcnemar_p"));
  }
  row.push_back(std::to_string(CountOf(metric, "rows")));
  table.Add(row);
}

std::string Rows(int64_t count) { return fmt::format("{} row{}", count, count == 1 ? "" : "s"); }

std::string Notes(const Json& report, bool tuned) {
  std::string text;
  const int64_t rows = CountOf(report, "rows");
  // The note holds for metrics that rows pass or fail: two standard errors of a share of one half.
  constexpr int64_t kFewRows = 100;
  std::string passes;
  for (const Json& metric : ListOf(report, "metrics")) {
    if (!IsNumber(metric, "only_base")) continue;
    passes += (passes.empty() ? "" : ", ") + OneLine(TextOf(metric, "name"));
  }
  if (tuned && !passes.empty() && rows > 0 && rows < kFewRows) {
    text += fmt::format(
        "with {} a difference below about {:.0f} points cannot be told from chance ({})\n",
        Rows(rows), 100 / std::sqrt(static_cast<double>(rows)), passes);
  }
  for (const Json& metric : ListOf(report, "metrics")) {
    if (CountOf(metric, "ungraded") == 0) continue;
    text += fmt::format("{}: {} of {} rows could not be graded and count on neither side; {}\n",
                        OneLine(TextOf(metric, "name")), CountOf(metric, "ungraded"), rows,
                        OneLine(TextOf(metric, "first_ungraded")));
  }
  if (CountOf(report, "without_question") > 0) {
    text += fmt::format("{} without a question before the answer, left out\n",
                        Rows(CountOf(report, "without_question")));
  }
  if (CountOf(report, "errors") > 0) {
    text += fmt::format("{} with an answer that ended with an error (scores.jsonl)\n",
                        Rows(CountOf(report, "errors")));
  }
  return text;
}

}  // namespace

std::string SampleText(const std::string& text) {
  if (text.size() <= kLongestText) return OneLine(text);
  size_t end = kLongestText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return OneLine(text.substr(0, end)) + " ...";
}

std::string ScoresText(const Json& side) {
  std::string text;
  const Json* scores = Member(side, "scores");
  if (scores == nullptr || !scores->is_object()) return text;
  for (const auto& item : scores->items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", OneLine(item.key()),
                        Figure(*scores, item.key().c_str()));
  }
  return text;
}

std::string EvaluationText(const Json& report) {
  const bool tuned = HasTuned(report);
  std::vector<std::string> header = {"METRIC", "BASE"};
  if (tuned) {
    for (const char* name :
         {"TUNED", "DIFFERENCE", "95 % INTERVAL", "P", "ONLY BASE/TUNED", "MCNEMAR P"}) {
      header.emplace_back(name);
    }
  }
  header.emplace_back("ROWS");
  Table table(header);
  for (const Json& metric : ListOf(report, "metrics")) AddMetric(metric, tuned, table);
  return table.Render() + Notes(report, tuned);
}

std::string SamplesText(const Json& report, int count) {
  std::string text;
  for (const Json& row : ListOf(report, "samples")) {
    if (count-- <= 0) break;
    text += fmt::format("\nline {}\n  prompt     {}\n  reference  {}\n", CountOf(row, "line"),
                        SampleText(TextOf(row, "prompt")), SampleText(TextOf(row, "reference")));
    for (const char* side : {"base", "tuned"}) {
      const Json* result = Member(row, side);
      if (result == nullptr) continue;
      text += fmt::format("  {:<9}  {}\n             [{}]\n", side,
                          SampleText(TextOf(*result, "answer")), ScoresText(*result));
    }
  }
  return text;
}

std::string EvaluationsTable(const std::vector<std::string>& labels,
                             const std::vector<Json>& reports) {
  std::vector<std::string> header = {"METRIC"}, names;
  header.insert(header.end(), labels.begin(), labels.end());
  for (const Json& report : reports) {
    for (const Json& metric : ListOf(report, "metrics")) {
      const std::string name = TextOf(metric, "name");
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  Table table(header);
  for (const std::string& name : names) {
    std::vector<std::string> row = {name};
    for (const Json& report : reports) {
      const Json& metrics = ListOf(report, "metrics");
      const auto found = std::find_if(metrics.begin(), metrics.end(), [&](const Json& metric) {
        return TextOf(metric, "name") == name;
      });
      row.push_back(found == metrics.end()
                        ? "-"
                        : Figure(*found, Member(*found, "tuned") != nullptr ? "tuned" : "base"));
    }
    table.Add(row);
  }
  return table.Render();
}

}  // namespace sft::client
