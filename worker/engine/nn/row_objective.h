#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace sft::engine {

// A loss that is no plain sum of cross entropies: of those of a micro-batch's rows, fp64 [N], makes
// what is reported and the derivative of the loss by each of them. Called once a micro-batch;
// everything stays on the device.
struct RowObjectiveResult {
  at::Tensor sums;     // fp64 [any]: what is added up over micro-batches and ranks; the loss first
  at::Tensor weights;  // fp64 [N]
};
using RowObjective = std::function<RowObjectiveResult(const at::Tensor& cross_entropies)>;

}  // namespace sft::engine
