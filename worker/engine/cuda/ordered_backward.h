#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/cuda/cudnn_attention.h"

// Attention's backward in a fixed order of summation by our own kernel
// (kernels/ordered_backward.h): for heads of 64 and of 128 on Hopper, where documents are long
// (common/plan/attention_calls.h). All calls of a process give equal bits for equal batches.
//
// All functions may be called from any thread.

namespace sft::engine::cuda {

// For a batch whose heads go in turns (BackwardHeads::InTurns), on Hopper (hopper.h). `tensors` in
// the order of CudnnOperand, `lse` from CudnnAttention.
void OrderedBackward(const std::vector<at::Tensor>& tensors, const at::Tensor& lse,
                     const at::Tensor& cu_seqlens, int64_t documents, const CudnnBatch& batch,
                     double scale, int64_t window);

}  // namespace sft::engine::cuda
