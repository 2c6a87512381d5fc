#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/cuda/cudnn_attention.h"

// Attention's backward over long documents, a slab of queries at a time against the keys that it
// sees. What cuDNN keeps for a fixed order of summation, the gradients of the scores, then grows
// with the length of a document, not with its square. A slab's dq is final; dk and dv are the
// slabs' in fp32, in the order of the queries. A slab's size follows from the batch's shape alone,
// so that equal batches give equal bits. All slabs share one plan, for the longest keys, and tell
// cuDNN on the device how many there are: a plan for each number of keys would take half a second
// each to build, and is 2 to 5 % faster.
//
// All functions may be called from any thread.

namespace sft::engine::cuda {

// The largest divisor of n that is at most `at_most`, and at least 1.
int64_t LargestDivisor(int64_t n, int64_t at_most);

// The workspace of cuDNN's backward for one key head of one document with its `group` query heads:
// gradients of the scores in bf16, or sums of dq in fp32; of each query head the gradients of its
// keys and values in bf16; its sums of dout * out.
int64_t CudnnBackwardBytes(int64_t queries, int64_t keys, int64_t group, int64_t head_dim);

// One document after the other. `tensors` in the order of CudnnOperand, `lse` from CudnnAttention.
// False, with nothing written, where there is no plan.
bool CudnnBackwardInSlabs(const std::vector<at::Tensor>& tensors, const at::Tensor& lse,
                          const at::Tensor& cu_seqlens, int64_t documents, const CudnnBatch& batch,
                          double scale, int64_t window);

}  // namespace sft::engine::cuda
