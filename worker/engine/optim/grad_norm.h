#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// Sum of the squares of all elements, in fp64, in an order that depends on the sizes alone (not on
// the number of threads). Undefined and empty tensors count as zero.
double SquaredNorm(std::span<const at::Tensor> grads);

// L2 norm of a gradient of which every rank holds `replicated` whole and its own part of `sharded`.
// One collective when the world is larger than one and `sharded` is in use on any rank: so all
// ranks say with `has_shards`, equal on all ranks, whether to run it.
double GlobalGradNorm(std::span<const at::Tensor> replicated, std::span<const at::Tensor> sharded,
                      bool has_shards, Communicator& comm);

// What to multiply gradients with so that their norm is at most max_norm, as
// torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). max_norm 0 means no clipping.
double ClipFactor(double norm, double max_norm);

}  // namespace sft::engine
