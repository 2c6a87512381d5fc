#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/columnar/row_limits.h"

namespace sft::columnar {

// Whether a file begins as an Arrow file (Feather) or an Arrow stream, as `datasets` keeps.
bool LooksLikeArrow(std::string_view head);

// Reads the rows of an Arrow file or stream from first to last, a batch in memory at a time. What
// becomes of them is as with ReadParquet.
absl::Status ReadArrow(int fd, std::string_view path, const RowLimits& limits,
                       const TakeObject& take);

}  // namespace sft::columnar
