#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/cuda/cudnn_attention.h"

// Backward of attention with a window in a fixed order of summation. cuDNN's kernels for a fixed
// order go over all keys before a query, window or not. Here a document is cut into slabs of 512
// queries, each with the keys that one of its queries may see, and all slabs of all documents are
// the documents of a ragged batch whose keys overlap: the work grows with the length times the
// window. A slab's dq is final; a key's dk and dv are the sums of its slabs' parts.
//
// All functions may be called from any thread.

namespace sft::engine::cuda {

// `tensors` in the order of CudnnOperand, `lse` from CudnnAttention. False, with nothing written,
// where there is no plan.
bool CudnnBackwardInWindowSlabs(const std::vector<at::Tensor>& tensors, const at::Tensor& lse,
                                const at::Tensor& cu_seqlens, int64_t documents,
                                const CudnnBatch& batch, double scale, int64_t window);

}  // namespace sft::engine::cuda
