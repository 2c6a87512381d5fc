#pragma once

#include "common/base/status.h"
#include "common/plan/peak_memory.h"
#include "common/plan/plan.h"
#include "common/plan/stages.h"

namespace sft::plan {

// The part of a problem that a stage of a pipeline holds: its blocks, the embedding where it is the
// first, final norm and head where it is the last, with a copy of the table where that is the head.
Problem StageProblem(const Problem& whole, const StageMap& stages, int stage);

// The memory of the stage at its peak, with as many micro-batches in flight as it has.
PeakMemory StageMemory(const Problem& of_stage, const ExecutionPlan& run, int stage);

// MakePlan for a job that runs as a pipeline: all stages recompute alike, and hold no copies. Its
// memory is that of the fullest stage, its time that of the schedule.
absl::StatusOr<Plan> PlanPipeline(const Problem& problem, const PlanInput& input);

}  // namespace sft::plan
