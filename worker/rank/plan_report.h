#pragma once

#include <cstdint>
#include <string>

#include "common/plan/plan.h"
#include "worker/channel/event.h"

namespace sft::rank {

// Memory and time of a step as a GPU's allocator and clock show them, to be set beside the plan.
struct Measured {
  int64_t resident_bytes = 0;   // allocated between steps
  int64_t allocated_bytes = 0;  // most at once
  int64_t reserved_bytes = 0;   // most at once
  int64_t outside_bytes = 0;    // of the GPU's memory, not the allocator's
  double tokens_per_second = 0;
};

// The plan of `rank` beside what was measured. `rates_known`: false for a type of GPU whose speed
// was never measured; there is no predicted rate then.
channel::PlanEvent MakePlanEvent(int rank, const plan::Plan& plan, const std::string& description,
                                 bool rates_known, const Measured& measured);

// The event as a table for people: category, predicted, measured.
std::string PlanTable(const channel::PlanEvent& event);

}  // namespace sft::rank
