#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "common/base/status.h"

namespace sft::columnar {

// Takes the JSON object of a row, and which one it is, from 1. The text is valid during the call.
// Returns false when it needs no more rows.
using TakeObject = std::function<absl::StatusOr<bool>(int64_t row, std::string_view object)>;

// What the rows of a table may grow to.
struct RowLimits {
  int64_t max_row_bytes = 0;
  // All rows: the larger of a fixed size and of so many times the file's.
  int64_t free_bytes = int64_t{1} << 30;
  int64_t max_ratio = 500;
};

// Counts the rows of one file against their limits.
class RowCounter {
 public:
  RowCounter(const RowLimits& limits, int64_t file_size);
  // INVALID_ARGUMENT for a row that is too long, or one too many.
  absl::Status Add(std::string_view row);

 private:
  const RowLimits limits_;
  int64_t most_ = 0, made_ = 0;
};

}  // namespace sft::columnar
