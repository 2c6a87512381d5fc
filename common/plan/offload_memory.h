#pragma once

#include "common/base/status.h"
#include "common/plan/plan.h"

namespace sft::plan {

// What each of a node's `ranks` may take of the `available_bytes` of its memory for weights,
// masters and states: less what a rank's process needs for itself.
int64_t HostBytesOfRank(int64_t available_bytes, int64_t ranks);

// ResourceExhausted where offload_optimizer or offload_param asks for more host memory than
// input.host_bytes: names the key and the bytes, and changes of the job that fit. OK where that is
// not known.
absl::Status CheckHostMemory(const PlanInput& input, const Problem& problem);

}  // namespace sft::plan
