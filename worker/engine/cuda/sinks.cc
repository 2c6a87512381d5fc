#include "worker/engine/kernels/sinks.h"

#include <c10/cuda/CUDAGuard.h>

#include <optional>

#include "worker/engine/cuda/cudnn_attention.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/rows.h"

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
  const Tensor by_head = ByHead(lse, documents, out.size(0)).contiguous();
  CheckVector(sinks, out.size(1), by_head, "AddSinks: sinks");
  const SinkShape shape{.tokens = out.size(0),
                        .heads = static_cast<int>(out.size(1)),
                        .size = static_cast<int>(out.size(2)),
                        .token_stride = out.stride(0)};
  const LaunchScope scope(out);
  if (out.numel() > 0) {
    C10_CUDA_CHECK(LaunchScaleBySinks(TypeOf(out, "AddSinks"), shape, out.mutable_data_ptr(),
                                      by_head.const_data_ptr<float>(),
                                      sinks.const_data_ptr<float>(), scope.stream()));
  }
  sinks::Widen(lse, sinks);
}

Tensor SinkGradient(const Tensor& dout, const Tensor& out, const Tensor& lse, const Tensor& sinks,
                    const ops::Documents& documents) {
  const c10::cuda::CUDAGuard guard(out.device());
  return sinks::Gradient(dout, out, ByHead(lse, documents, out.size(0)), sinks);
}

}  // namespace sft::engine::cuda
