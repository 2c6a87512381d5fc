#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/grade/metric.h"

namespace sft::rank {

// What a report says of itself beside its numbers.
struct ReportHead {
  std::vector<std::string> graders;  // that graded beside the metrics: their scores' names
  std::string model, adapter, data;
  int64_t without_question = 0;  // rows of the data that could not be asked
};

// The result of an evaluation: of all lines that EvaluationTask made, each metric's value of base
// and adapter with the paired comparison of both (common/grade/compare.h), and the first rows side
// by side. docs/evaluate.md has its members.
absl::StatusOr<nlohmann::ordered_json> MakeReport(const std::string& lines_file,
                                                  const grade::Grader& grader,
                                                  const ReportHead& head);

}  // namespace sft::rank
