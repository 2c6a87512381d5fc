#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// The dense ones of `tensors` that lie end to end in one storage, in whatever order they are given,
// joined into one, flat; others as they are. Undefined and empty ones are left out. Storages keep
// the order of their first tensor; within one the order is that of the places.
std::vector<at::Tensor> JoinAdjacent(std::span<const at::Tensor> tensors);

// Sum of the squares of all elements. On a CPU in fp64, in an order that depends on the sizes alone
// (not on the number of threads). On a device in fp32 within tensors, after JoinAdjacent, in an
// order that depends on the sizes and on which tensors are adjacent; the host waits once. Undefined
// and empty tensors count as zero.
double SquaredNorm(std::span<const at::Tensor> grads);

// A part of a gradient, and the unit that it belongs to.
struct UnitGradient {
  int unit = 0;
  at::Tensor values;
};

// L2 norm of a gradient of which this rank holds `parts`, by unit. `stages`: ranks that hold other
// units; `shards`: ranks that hold other elements of the same units. Squares are added up unit by
// unit in the order of the units, wherever these are held, then over the shards: how units are
// divided over stages does not show in the bits. Collectives of both groups.
double GlobalGradNorm(const std::vector<UnitGradient>& parts, Communicator& stages,
                      Communicator& shards);

// The factor that brings the norm of gradients down to max_norm, as in
// torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). max_norm 0 means no clipping.
double ClipFactor(double norm, double max_norm);

}  // namespace sft::engine
