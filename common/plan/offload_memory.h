#pragma once

#include "common/base/status.h"
#include "common/plan/plan.h"

namespace sft::plan {

// Bytes of `available_bytes` of a node's memory that each of its `ranks` may take for weights,
// masters and states: its share, less what a rank's process needs for itself.
int64_t HostBytesOfRank(int64_t available_bytes, int64_t ranks);

// The other way round: what has to be free for each rank.
int64_t FreeHostBytes(int64_t bytes_of_rank);

// ResourceExhausted where offload_optimizer or offload_param needs more host memory than
// input.host_bytes; the message names the key, the bytes and changes of the job that fit. OK where
// host_bytes is not known.
absl::Status CheckHostMemory(const PlanInput& input, const Problem& problem);

}  // namespace sft::plan
