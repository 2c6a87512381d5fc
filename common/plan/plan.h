#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/execution.h"
#include "common/plan/gpu.h"
#include "common/plan/peak_memory.h"
#include "common/plan/step_time.h"

// Planner: decides how a job runs in the memory there is. Pure functions: the server plans before a
// job is submitted, with the known memory of the GPU type, and each rank plans before it loads
// anything, with the memory its GPU really has free.

namespace sft::plan {

// Input of the planner.
struct PlanInput {
  ModelShape shape;
  spec::JobSpec job;
  GpuRates gpu;
  // The most that a rank's allocator may hold: AllocatorBytes, or less.
  int64_t memory_bytes = 0;
  // Tokens of the longest row; 0 means RowTokensOf.
  int64_t row_tokens = 0;
  // The most that a rank may take of its node's memory; 0: not known, and not checked.
  int64_t host_bytes = 0;
  // Blocks may keep rows in host memory.
  bool keeps_on_host = true;
};

// The part of a GPU's `free_bytes` that a rank's allocator may take: less the memory of libraries
// loaded beside it and, unless the rank has `opened` them already, of the driver's context and
// NCCL; at most the job's compute.memory_budget_gb.
int64_t AllocatorBytes(const spec::JobSpec& job, int64_t free_bytes, bool opened);

// The other way round: the memory of a GPU on which a rank's allocator may take so much. The job
// has no compute.memory_budget_gb.
int64_t GpuBytes(const spec::JobSpec& job, int64_t allocator_bytes);

// The most tokens that a row of the job has: of a preference pair, both answers with their prompts.
int64_t RowTokensOf(const spec::JobSpec& job);

// The least that a rank's allocator needs for the job, with one row a micro-batch and everything
// recomputed. InvalidArgument as MakePlan.
absl::StatusOr<int64_t> LeastBytes(const ModelShape& shape, const spec::JobSpec& job);

// How a job runs, with the predicted memory and time.
struct Plan {
  ExecutionPlan execution;
  PeakMemory memory;
  StepTime time;
  double tokens_per_second = 0;  // all ranks together, full rows
};

// Makes the fastest plan that fits. It chooses micro-batches of per_device_batch rows, or of a
// divisor of it where that fits better and is faster by more than the model's error; with "auto" of
// any divisor of a rank's rows. The global batch stays. Then it chooses what is recomputed, and
// which blocks keep their de-quantised weights. activation_checkpointing = true recomputes
// everything.
//
// ResourceExhausted when nothing fits, or the part that offload_optimizer moves to the host does
// not fit there; the message says what takes the memory and what would make it fit. InvalidArgument
// for target modules that the model does not have.
absl::StatusOr<Plan> MakePlan(const PlanInput& input);

// The least seconds that a step of the job could take on such a GPU, if it had memory for all that
// saves time; 0 for a pipeline, whose plan is made as quickly. InvalidArgument as MakePlan.
absl::StatusOr<double> LeastSeconds(const PlanInput& input);

// Whether the job fits with one row a micro-batch and everything recomputed, and nothing of its
// activations in host memory unless `keeps_on_host`. False for a job that cannot be planned.
bool FitsAtLeast(const PlanInput& input);

// What optimizer and master_weights may become where they are "auto", the most precise first; the
// job itself where neither is.
std::vector<spec::JobSpec> PrecisionsOf(const spec::JobSpec& job);

// Chooses hyperparameters.optimizer and master_weights where they are "auto": the most precise ones
// with which the job fits or, if it fits with none, the most precise. master_weights stays "auto"
// where that is fp32, its meaning to an engine.
spec::JobSpec WithPrecision(const PlanInput& input);

// The choices for people: "8 rows x 1, recompute norms in 36 layers, 0 kept".
std::string Describe(const Plan& plan, const spec::JobSpec& job, int64_t layers);

}  // namespace sft::plan
