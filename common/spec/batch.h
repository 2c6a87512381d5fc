#pragma once

#include <cstdint>

namespace sft::spec {

// Rows of a micro-batch where neither the job nor a plan sets them: the largest divisor up to 4 of
// `rank_rows`, a rank's rows per step (at least 1).
int64_t UnplannedRows(int64_t rank_rows);

// Steps in `n_epochs` epochs of `steps_per_epoch` steps: a partial step counts as a step, and there
// is at least one.
int64_t StepsOfEpochs(double n_epochs, int64_t steps_per_epoch);

}  // namespace sft::spec
