#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/execution.h"
#include "common/plan/gpu.h"
#include "common/plan/peak_memory.h"
#include "common/plan/step_time.h"

// How a job runs in the memory there is. A pure function: the server asks it before a job is
// submitted, with what the type of GPU is known to have, and each rank before it loads anything,
// with what its GPU really has free.

namespace sft::plan {

// What a plan is made for.
struct PlanInput {
  ModelShape shape;
  spec::JobSpec job;
  GpuRates gpu;
  // Most that the allocator of a rank may hold: AllocatorBytes, or less.
  int64_t memory_bytes = 0;
  // Tokens of the longest row; 0: sequence_length.
  int64_t row_tokens = 0;
  // Most that a rank may take of its node's memory; 0: not known, and not looked at.
  int64_t host_bytes = 0;
};

// What a rank's allocator may take of `free_bytes` of a GPU: less what libraries load beside it
// and, unless the rank has `opened` them already, the driver's context and NCCL take; and no more
// than the job's compute.memory_budget_gb.
int64_t AllocatorBytes(const spec::JobSpec& job, int64_t free_bytes, bool opened);

// How a job runs, with what that is predicted to take.
struct Plan {
  ExecutionPlan execution;
  PeakMemory memory;
  StepTime time;
  double tokens_per_second = 0;  // of all ranks, with full rows
};

// The fastest plan that fits: micro-batches of per_device_batch rows, or of a divisor of it where
// that fits better and is faster by more than the model's error; with "auto" of any divisor of what
// falls to a rank. The global batch stays. Then what is recomputed, and which blocks keep their
// de-quantised weights. activation_checkpointing = true recomputes everything.
//
// ResourceExhausted when nothing fits, or what offload_optimizer moves to the host does not fit
// there, saying what takes the memory and what would make it fit;
// InvalidArgument for target modules that the model does not have.
absl::StatusOr<Plan> MakePlan(const PlanInput& input);

// The job with those of hyperparameters.optimizer and master_weights that are "auto" chosen: the
// most precise ones with which it fits. Where it fits with none, the most precise. master_weights
// stays "auto" where that is fp32, its meaning to an engine.
spec::JobSpec WithPrecision(const PlanInput& input);

// "8 rows x 1, recompute norms in 36 layers, 0 kept": what was chosen, for people.
std::string Describe(const Plan& plan, const spec::JobSpec& job, int64_t layers);

}  // namespace sft::plan
