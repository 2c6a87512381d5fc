#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/columnar/row_limits.h"

namespace sft::columnar {

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
