#include "worker/engine/cuda/kernels/ragged.h"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void RaggedOffsets(RaggedShape shape, const int32_t* __restrict__ cu_seqlens,
                              int64_t* __restrict__ offsets, int32_t* __restrict__ lengths) {
  const int64_t entries = shape.per_call + 1;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= shape.Calls() * entries) return;
  const int64_t call = index / entries, entry = index % entries;
  const int64_t document = call * shape.per_call + entry;
  const int64_t last = shape.documents;
  const int64_t token = cu_seqlens[document < last ? document : last];
  int64_t* to = offsets + call * shape.operands * shape.OffsetPitch() + entry;
  for (int i = 0; i < shape.operands; ++i, to += shape.OffsetPitch()) {
    *to = token * shape.token_strides[i];
  }
  if (entry < shape.per_call) {
    lengths[call * shape.LengthPitch() + entry] =
        document < last ? cu_seqlens[document + 1] - static_cast<int32_t>(token) : 0;
  }
}

}  // namespace

cudaError_t LaunchRaggedOffsets(const RaggedShape& shape, const int32_t* cu_seqlens,
                                int64_t* offsets, int32_t* lengths, cudaStream_t stream) {
  const int64_t entries = shape.Calls() * (shape.per_call + 1);
  const auto blocks = static_cast<unsigned>((entries + kThreads - 1) / kThreads);
  RaggedOffsets<<<blocks, kThreads, 0, stream>>>(shape, cu_seqlens, offsets, lengths);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
