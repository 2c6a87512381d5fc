#pragma once

#include "worker/engine/optim/adamw_state.h"

namespace sft::engine::optim {

// An AdamW step by ATen's operations, on any device: what the loops of the CPU and the kernel of
// CUDA are compared with. The same rounding, random bits included, but for the device's own
// arithmetic. AdamWOptions::step takes it.
void StepAten(const Step& step);

}  // namespace sft::engine::optim
