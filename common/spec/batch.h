#pragma once

#include <cstdint>

namespace sft::spec {

// Rows of a micro-batch where neither the job nor a plan says how many: the largest divisor up to 4
// of the `rank_rows` (at least 1) that a rank has in a step.
int64_t UnplannedRows(int64_t rank_rows);

}  // namespace sft::spec
