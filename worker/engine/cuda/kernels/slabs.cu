#include "worker/engine/cuda/kernels/extent.cuh"
#include "worker/engine/cuda/kernels/slabs.h"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kElements = kWide<Element>;  // of a thread

__device__ Extent DocumentExtent(const SlabDocument& document) {
  return ExtentOf(document.cu_seqlens, document.documents, document.index);
}

__global__ void SlabOffsets(SlabOperands operands, SlabDocument document, Slab slab,
                            int64_t* __restrict__ offsets, int32_t* __restrict__ lengths) {
  const Extent extent = DocumentExtent(document);
  const int32_t end = min(extent.length, slab.end());
  const int32_t queries = max(0, end - slab.first);
  const int32_t keys = queries > 0 ? end - slab.first_key : 0;
  if (threadIdx.x == 0) {
    lengths[0] = queries;
    lengths[kSlabKeyLength] = keys;
  }
  const int operand = static_cast<int>(threadIdx.x);
  if (operand >= operands.count) return;
  const bool has_keys = operands.has_keys[operand];
  int64_t token = operands.is_part[operand] ? 0 : extent.start;
  if (queries > 0 && !operands.is_part[operand]) token += has_keys ? slab.first_key : slab.first;
  const int64_t stride = operands.token_strides[operand];
  offsets[2 * operand] = token * stride;
  offsets[2 * operand + 1] = (token + (has_keys ? keys : queries)) * stride;
}

__global__ void AddSlab(SlabDocument document, Slab slab, int64_t width, SlabGradient dk,
                        SlabGradient dv) {
  const SlabGradient& gradient = blockIdx.y == 0 ? dk : dv;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  const int64_t row = at / width, column = at % width;
  const Extent extent = DocumentExtent(document);
  const int64_t key = slab.first_key + row;
  if (extent.length <= slab.first || key >= min(extent.length, slab.end())) return;
  float x[kElements];
  Load<Element, kElements>(static_cast<const Element*>(gradient.part) + at, x);
  float* sums = gradient.sums + key * width + column;
  if (key < slab.first) {
    float before[kElements];
    Load<float, kElements>(sums, before);
#pragma unroll
    for (int i = 0; i < kElements; ++i) x[i] += before[i];
  }
  const bool last = extent.length <= slab.end() || key < slab.next_first_key;
  if (!last) {
    Store<float, kElements>(sums, x);
    return;
  }
  auto* out = static_cast<Element*>(gradient.out.data);
  Store<Element, kElements>(out + (extent.start + key) * gradient.out.stride + column, x);
}

}  // namespace

cudaError_t LaunchSlabOffsets(const SlabOperands& operands, const SlabDocument& document,
                              const Slab& slab, int64_t* offsets, int32_t* lengths,
                              cudaStream_t stream) {
  SlabOffsets<<<1, kWarp, 0, stream>>>(operands, document, slab, offsets, lengths);
  return cudaGetLastError();
}

cudaError_t LaunchAddSlab(const SlabDocument& document, const Slab& slab, int64_t width,
                          const SlabGradient& dk, const SlabGradient& dv, cudaStream_t stream) {
  const int64_t threads = slab.keys() * width / kElements;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(threads, kThreads)), 2);
  AddSlab<<<blocks, kThreads, 0, stream>>>(document, slab, width, dk, dv);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
