#pragma once

#include <string>
#include <vector>

#include "client/output/json.h"

// The result of a job of kind "evaluate" (evaluation.json, docs/evaluate.md) for people. Members
// that are missing or of another type are shown as "-".

namespace sft::client {

// Each metric of base and adapter, with the difference, its interval and p-values; then what the
// reader has to know of them.
std::string EvaluationText(const Json& report);

// The first `count` rows: prompt, reference and each model's answer with its scores.
std::string SamplesText(const Json& report, int count);

// A prompt or an answer as one line of a terminal, cut where it is long.
std::string SampleText(const std::string& text);
// "exact_match 100.00, f1 40.00", of an answer.
std::string ScoresText(const Json& side);

// The metrics of several evaluations beside each other, each under its label: the adapter's value,
// or the base's where there is no adapter.
std::string EvaluationsTable(const std::vector<std::string>& labels,
                             const std::vector<Json>& reports);

}  // namespace sft::client
