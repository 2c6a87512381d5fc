#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace sft::data {

// Longest row that is taken.
inline constexpr int64_t kMaxRowBytes = 16 << 20;

// What a data set holds.
struct DatasetCheck {
  int64_t rows = 0;
  // Rows that are JSON objects in none of the forms below: each job says what becomes of them
  // (data.on_bad_rows).
  int64_t odd_rows = 0;
  int64_t first_odd_row = 0;  // counted from 1 in rows; 0: none
  std::string first_odd;      // "line 7: what is wrong"
};

// Reads a data set row by row: not empty, every line a JSON object, as a rule in one of three forms
//   {"messages": [{"role": "...", "content": ...}, ...]}
//   {"prompt": "...", "completion": "..."}   (or both lists of messages)
//   {"text": "..."}
// Empty lines are skipped. INVALID_ARGUMENT names the line and what would be right: a file that is
// no JSON Lines is not kept. Whether a row has an answer to learn from depends on the job and is
// checked when it is prepared.
absl::StatusOr<DatasetCheck> CheckDataset(const std::string& path);

// Why a job cannot use these rows; empty: it can, or its ranks will say. `skips`: it leaves out
// rows that it cannot use. `taken`: it reads the first so many alone; 0: all.
std::string RowsProblem(const DatasetCheck& found, bool skips, int64_t taken);

}  // namespace sft::data
