#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/columnar/row_limits.h"

namespace sft::columnar {

// Whether a file that begins so is a table that ReadTable reads.
bool IsTable(std::string_view head);

// Reads the rows of a Parquet or Arrow file, told by its first bytes. See ReadParquet and
// ReadArrow.
absl::Status ReadTable(int fd, std::string_view path, const RowLimits& limits,
                       const TakeObject& take);

}  // namespace sft::columnar
