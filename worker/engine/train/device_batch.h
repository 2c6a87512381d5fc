#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/data/step_plan.h"
#include "worker/engine/nn/batch.h"

namespace sft::engine {

// Copies a micro-batch to `device`. An empty one becomes a single token without a target: a rank
// that has no rows still walks the units in the order of the others, and adds zero.
DeviceBatch ToDevice(const MicroBatch& batch, at::Device device);

}  // namespace sft::engine
