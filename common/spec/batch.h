#pragma once

#include <cstdint>

namespace sft::spec {

// Rows of a micro-batch where neither the job nor a plan says how many: the largest divisor up to 4
// of the `rank_rows` (at least 1) that a rank has in a step.
int64_t UnplannedRows(int64_t rank_rows);

// Steps in `n_epochs` of epochs of `steps_per_epoch`: part of a step is a step, and at least one.
int64_t StepsOfEpochs(double n_epochs, int64_t steps_per_epoch);

}  // namespace sft::spec
