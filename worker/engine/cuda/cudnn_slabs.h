#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/cuda/cudnn_attention.h"

// Attention's backward over long documents, a slab of queries at a time against the keys that it
// sees. What cuDNN keeps for a fixed order of summation, the gradients of the scores, then grows
// with the length of a document, not with its square. A slab's dq is final; dk and dv are the
// slabs' in fp32, in the order of the queries. A slab's size (common/plan/attention_calls.h)
// follows from the batch's shape alone, so that equal batches give equal bits. All slabs share one
// plan, for the longest keys, and tell cuDNN on the device how many there are: a plan for each
// number of keys would take half a second each to build, and is 2 to 5 % faster.
//
// All functions may be called from any thread.

namespace sft::engine::cuda {

// One document after the other. `tensors` in the order of CudnnOperand, `lse` from CudnnAttention.
// False, with nothing written, where there is no plan.
bool CudnnBackwardInSlabs(const std::vector<at::Tensor>& tensors, const at::Tensor& lse,
                          const at::Tensor& cu_seqlens, int64_t documents, const CudnnBatch& batch,
                          double scale, int64_t window);

}  // namespace sft::engine::cuda
