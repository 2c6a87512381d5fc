#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "common/plan/attention_calls.h"

// Causal attention by cuDNN's graphs, for bf16 on Hopper and later: about 1.8 times as fast as
// FlashAttention-2 there. Tensors, documents, scale and window are those of ops.h.
//
// Documents of one length are a dense batch. Others are a ragged batch with a padding mask, whose
// plan is for a rounded number of documents and a rounded longest one, so that batches share plans.
// Plans are kept per process: 64, the least recently used goes first. One that cannot be built is
// remembered as well, and named once on stderr.
//
// The backward's order of summation is fixed where LibTorch's global context asks for deterministic
// algorithms. For that, cuDNN 9 keeps the gradients of the scores of a whole call, 2 bytes each;
// otherwise it sums up dq in fp32, by atomics. A batch goes in several calls where its workspace
// would be too large (common/plan/attention_calls.h), the longest documents by slabs of queries
// (cudnn_slabs.h), long ones with a window by slabs too, all at once (cudnn_window_slabs.h). All
// calls of a batch use one workspace of the caching allocator, freed when the last is enqueued.
// Long documents with heads of 128 have a kernel of our own on Hopper (ordered_backward.h).
//
// All functions may be called from any thread.

namespace sft::engine::cuda {

// The batch as plans see it; a function of its shape (kernels/batch_shape.h) alone.
struct CudnnBatch {
  int64_t documents = 0;
  int64_t longest = 0;
  bool ragged = false;
};

// Nothing where cuDNN is not the one to use: see kWorst in cudnn_attention.cc.
std::optional<CudnnBatch> CudnnBatchOf(at::IntArrayRef lengths);

// The heads of q and k, [T, heads, D], in the order of summation that LibTorch's context asks for.
plan::BackwardHeads HeadsOf(const at::Tensor& q, const at::Tensor& k);

// True if cuDNN takes such tensors: bf16, head size, alignment, device.
bool CudnnTakes(at::TensorList tensors);

// Fills `out` and returns the logsumexp, fp32 [batch.documents, Hq, batch.longest], or returns
// nothing and leaves `out` alone where there is no plan.
std::optional<at::Tensor> CudnnAttention(at::Tensor& out, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& cu_seqlens,
                                         at::IntArrayRef lengths, const CudnnBatch& batch,
                                         double scale, int64_t window);
// `lse` from CudnnAttention. False, with nothing written, where there is no plan.
bool CudnnAttentionBackward(at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const at::Tensor& dout,
                            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& out, const at::Tensor& lse,
                            const at::Tensor& cu_seqlens, at::IntArrayRef lengths,
                            const CudnnBatch& batch, double scale, int64_t window);

// The logsumexp of CudnnAttention over `tokens` as FlashAttention-2 has it: [Hq, T].
at::Tensor LseByHead(const at::Tensor& lse, const at::Tensor& cu_seqlens, int64_t tokens,
                     const CudnnBatch& batch);

}  // namespace sft::engine::cuda
