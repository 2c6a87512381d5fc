#include "worker/engine/cuda/kernels/extent.cuh"
#include "worker/engine/cuda/kernels/vec.cuh"
#include "worker/engine/cuda/kernels/window_slabs.h"

namespace sft::engine::cuda {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kElements = kWide<Element>;  // of a thread

__device__ int32_t FirstKey(const WindowSlabs& slabs, int32_t slab) {
  return max(0, slab * slabs.queries - slabs.before);
}

// One slab: its first rows in the operands, and how many rows it has.
struct Placed {
  int64_t query, key, part;
  int32_t queries, keys;
};

__device__ Placed Place(const WindowSlabs& slabs, int64_t index) {
  const Extent extent = ExtentOf(slabs.cu_seqlens, slabs.documents, index / slabs.per_document);
  const auto slab = static_cast<int32_t>(index % slabs.per_document);
  const int32_t first = min(slab * slabs.queries, extent.length);
  const int32_t end = min(first + slabs.queries, extent.length);
  const int32_t first_key = min(FirstKey(slabs, slab), extent.length);
  return {extent.start + first, extent.start + first_key, index * slabs.keys(), end - first,
          end > first ? end - first_key : 0};
}

__device__ int64_t RowOf(const Placed& placed, WindowOperands::Rows rows) {
  switch (rows) {
    case WindowOperands::kQueries:
      return placed.query;
    case WindowOperands::kKeys:
      return placed.key;
    case WindowOperands::kParts:
      return placed.part;
  }
  return 0;
}

__global__ void WindowOffsets(WindowSlabs slabs, WindowOperands operands,
                              int64_t* __restrict__ offsets, int32_t* __restrict__ lengths) {
  const int64_t entries = operands.per_call + 1;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= operands.calls * entries) return;
  const int64_t call = at / entries, entry = at % entries;
  const bool is_end = entry == operands.per_call;
  const Placed placed = Place(slabs, call * operands.per_call + entry - (is_end ? 1 : 0));
  int64_t* to = offsets + call * operands.count * operands.OffsetPitch() + entry;
  for (int i = 0; i < operands.count; ++i, to += operands.OffsetPitch()) {
    const WindowOperands::Rows rows = operands.rows[i];
    const int32_t length = rows == WindowOperands::kQueries ? placed.queries : placed.keys;
    *to = (RowOf(placed, rows) + (is_end ? length : 0)) * operands.token_strides[i];
  }
  if (is_end) return;
  int32_t* length = lengths + call * 2 * operands.LengthPitch() + entry;
  length[0] = placed.queries;
  length[operands.LengthPitch()] = placed.keys;
}

__global__ void AddWindowParts(WindowSlabs slabs, int64_t width, WindowGradient dk,
                               WindowGradient dv) {
  const WindowGradient& gradient = blockIdx.y == 0 ? dk : dv;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements;
  const auto key = static_cast<int32_t>(at / width);
  const int64_t column = at % width;
  const Extent extent = ExtentOf(slabs.cu_seqlens, slabs.documents, blockIdx.z);
  if (key >= extent.length) return;
  const auto* parts = static_cast<const Element*>(gradient.parts) +
                      static_cast<int64_t>(blockIdx.z) * slabs.per_document * slabs.keys() * width +
                      column;
  float sum[kElements] = {};
  for (int32_t slab = key / slabs.queries; slab * slabs.queries < extent.length; ++slab) {
    const int32_t first_key = FirstKey(slabs, slab);
    if (first_key > key) break;
    float x[kElements];
    const int64_t row = static_cast<int64_t>(slab) * slabs.keys() + key - first_key;
    Load<Element, kElements>(parts + row * width, x);
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum[i] += x[i];
  }
  auto* out = static_cast<Element*>(gradient.out.data);
  Store<Element, kElements>(out + (extent.start + key) * gradient.out.stride + column, sum);
}

}  // namespace

cudaError_t LaunchWindowOffsets(const WindowSlabs& slabs, const WindowOperands& operands,
                                int64_t* offsets, int32_t* lengths, cudaStream_t stream) {
  const int64_t entries = int64_t{operands.calls} * (operands.per_call + 1);
  const auto blocks = static_cast<unsigned>(CeilDiv(entries, kThreads));
  WindowOffsets<<<blocks, kThreads, 0, stream>>>(slabs, operands, offsets, lengths);
  return cudaGetLastError();
}

cudaError_t LaunchAddWindowParts(const WindowSlabs& slabs, int64_t longest, int64_t width,
                                 const WindowGradient& dk, const WindowGradient& dv,
                                 cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(longest * width / kElements, kThreads));
  const dim3 grid(blocks, 2, static_cast<unsigned>(slabs.documents));
  AddWindowParts<<<grid, kThreads, 0, stream>>>(slabs, width, dk, dv);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
