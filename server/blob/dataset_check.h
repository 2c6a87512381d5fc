#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace sft::server {

// Longest row that is taken.
inline constexpr int64_t kMaxRowBytes = 16 << 20;

// Reads a data set row by row: not empty, every line a JSON object in one of the three forms
//   {"messages": [{"role": "...", "content": ...}, ...]}
//   {"prompt": "...", "completion": "..."}
//   {"text": "..."}
// Empty lines are skipped. Returns the number of rows; INVALID_ARGUMENT names the line and what
// would be right. Whether a row has an answer to learn from depends on the job and is checked when
// it is prepared.
absl::StatusOr<int64_t> CheckDataset(const std::string& path);

}  // namespace sft::server
