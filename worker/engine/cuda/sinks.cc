#include "worker/engine/kernels/sinks.h"

#include <c10/cuda/CUDAGuard.h>

#include <optional>

#include "worker/engine/cuda/cudnn_attention.h"
#include "worker/engine/cuda/ops.h"

namespace sft::engine::cuda {

using at::Tensor;

namespace {

// lse as [Hq, T], whichever implementation of Attention it is of.
Tensor ByHead(const Tensor& lse, const ops::Documents& documents, int64_t tokens) {
  if (lse.dim() == 2) return lse;
  const std::optional<CudnnBatch> batch = CudnnBatchOf(documents.lengths);
  TORCH_CHECK(batch && lse.size(0) == batch->documents && lse.size(2) == batch->longest,
              "sinks: a logsumexp ", lse.sizes(), " of another batch");
  return LseByHead(lse, documents.cu_seqlens, tokens, *batch);
}

}  // namespace

void AddSinks(Tensor& out, Tensor& lse, const Tensor& sinks, const ops::Documents& documents) {
  const c10::cuda::CUDAGuard guard(out.device());
  sinks::Scale(out, ByHead(lse, documents, out.size(0)), sinks);
  sinks::Widen(lse, sinks);
}

Tensor SinkGradient(const Tensor& dout, const Tensor& out, const Tensor& lse, const Tensor& sinks,
                    const ops::Documents& documents) {
  const c10::cuda::CUDAGuard guard(out.device());
  return sinks::Gradient(dout, out, ByHead(lse, documents, out.size(0)), sinks);
}

}  // namespace sft::engine::cuda
