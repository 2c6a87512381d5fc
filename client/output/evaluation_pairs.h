#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/output/json.h"
#include "common/grade/compare.h"

// Two evaluations row by row: those of the same held-out rows are pairs, so that a difference has
// an interval and answers stand beside each other.

namespace sft::client {

// One evaluation.
struct EvaluationRows {
  std::string label;       // its job
  Json report;             // evaluation.json
  std::vector<Json> rows;  // the lines of scores.jsonl
};

// A metric of an evaluation against the first one.
struct EvaluationDifference {
  std::string label, metric;
  bool rows_pass = false;   // only_base and only_tuned count
  grade::Comparison found;  // `base` is the first one's
};
// One for every other evaluation and every metric that it has in common with the first, over the
// rows that both graded. What counts of an evaluation is its adapter, or the base where it has
// none.
std::vector<EvaluationDifference> DifferencesToFirst(const std::vector<EvaluationRows>& all);

std::string DifferencesText(const std::string& first,
                            const std::vector<EvaluationDifference>& differences);
Json DifferencesJson(const std::string& first,
                     const std::vector<EvaluationDifference>& differences);

// The first `count` rows that all evaluations have: prompt, reference, and each one's answer with
// its scores.
std::string CommonSamplesText(const std::vector<EvaluationRows>& all, int count);
Json CommonSamplesJson(const std::vector<EvaluationRows>& all, int count);

}  // namespace sft::client
