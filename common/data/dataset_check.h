#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace sft::data {

// The longest row accepted.
inline constexpr int64_t kMaxRowBytes = 16 << 20;

// Summary of a data set's rows.
struct DatasetCheck {
  int64_t rows = 0;
  // Rows that are JSON objects in none of the forms below. Each job decides how they are treated
  // (data.on_bad_rows).
  int64_t odd_rows = 0;
  int64_t first_odd_row = 0;  // counted from 1 in rows; 0: none
  std::string first_odd;      // "line 7: the error"
};

// Checks a data set row by row: it must not be empty and every line must be a JSON object, usually
// in one of three forms
//   {"messages": [{"role": "...", "content": ...}, ...]}
//   {"prompt": "...", "completion": "..."}   (or both lists of messages)
//   {"text": "..."}
// Empty lines are skipped. INVALID_ARGUMENT names the line and the correct form: a file that is not
// JSON Lines is not kept. Whether a row has an answer to learn from depends on the job and is
// checked when the row is prepared.
absl::StatusOr<DatasetCheck> CheckDataset(const std::string& path);

// Why a job cannot use these rows; empty if it can, or if only its ranks can tell. `skips`: the job
// leaves out rows that it cannot use. `taken`: the job reads only the first `taken` rows; 0 means
// all.
std::string RowsProblem(const DatasetCheck& found, bool skips, int64_t taken);

}  // namespace sft::data
