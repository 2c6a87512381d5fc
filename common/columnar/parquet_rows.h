#pragma once

#include <cstdint>
#include <functional>
#include <string>
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

// Whether a file that begins so says that it is a Parquet file. One that is encrypted says so only
// at its end.
bool LooksLikeParquet(std::string_view head);

// Reads the rows of a Parquet file from first to last, its columns as members in their order. A
// null member of an object is left out (KeepsNulls tells where it is not); a page of each column
// is in memory. `path` stands in messages about the disk. INVALID_ARGUMENT tells what is wrong or
// not read; errors of `take` are passed on.
absl::Status ReadParquet(int fd, std::string_view path, const RowLimits& limits,
                         const TakeObject& take);

}  // namespace sft::columnar
