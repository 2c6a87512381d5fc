#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/plan/plan.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/trainer.h"
#include "worker/rank/device.h"
#include "worker/rank/launch_file.h"

namespace sft::rank {

// The plan by which this rank runs its job.
struct RankPlan {
  plan::Plan plan;
  plan::ModelShape shape;
  int64_t row_tokens = 0;
  std::string description;
  int64_t memory_bytes = 0;  // what the allocator may hold: the least of any rank
  bool rates_known = false;  // the type of GPU was measured
};

// The plan for the memory that the ranks' GPUs have free now; nothing on a CPU, which runs a job as
// it says. Bounds the allocator to that memory. A collective; every rank gets the same plan. Throws
// UserError (code "no_fit") when the job does not fit: nothing is loaded then.
std::optional<RankPlan> PlanRank(const Launch& launch, const Device& device,
                                 const engine::Dataset& rows, engine::Communicator& comm);

// Has the trainer run by the plan, or where there is none as on a CPU: plan::Unplanned.
void Apply(const std::optional<RankPlan>& plan, engine::TrainerOptions& options);

}  // namespace sft::rank
