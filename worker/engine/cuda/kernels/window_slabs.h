// Launchers of the kernels around the backward of attention with a window in slabs of queries; see
// launch.h for what all launchers keep to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// The slabs of a packed micro-batch, `per_document` of each of its documents: `queries` queries
// each, and up to `before` keys before the first of them. A slab behind the end of its document, or
// of a document behind the last one, is empty.
struct WindowSlabs {
  const int32_t* cu_seqlens = nullptr;  // documents + 1 entries
  int32_t documents = 0;
  int32_t per_document = 0;
  int32_t queries = 0;
  int32_t before = 0;

  __host__ __device__ int32_t keys() const { return queries + before; }
};

// Where the operands of each call over `per_call` slabs begin, as cuDNN's packed layout has them.
struct WindowOperands {
  static constexpr int kMost = 8;
  enum Rows { kQueries, kKeys, kParts };  // a part's rows are the slab's keys() of all slabs' parts
  int32_t calls = 0;
  int32_t per_call = 0;
  int32_t count = 0;
  int64_t token_strides[kMost] = {};
  Rows rows[kMost] = {};
  // Entries between the arrays of two operands, and of two calls' lengths: each starts on 16 bytes.
  __host__ __device__ int64_t OffsetPitch() const { return (per_call + 2) / 2 * 2; }
  __host__ __device__ int64_t LengthPitch() const { return (per_call + 3) / 4 * 4; }
};
// Per call and operand, where each slab begins in elements, and at the end where the last one ends:
// offsets [calls, count, OffsetPitch]. Per call each slab's queries, then its keys: lengths [calls,
// 2, LengthPitch].
cudaError_t LaunchWindowOffsets(const WindowSlabs& slabs, const WindowOperands& operands,
                                int64_t* offsets, int32_t* lengths, cudaStream_t stream);

// Gradients of keys or values, bf16 rows of `width` elements: `parts` [slabs, keys, width], and the
// sums of each key's parts, whose first row is the first document's first token.
struct WindowGradient {
  const void* parts = nullptr;
  MutableRows out;
};
// For dk and dv at once, over documents of up to `longest` tokens: each sum is taken in fp32 in the
// order of the slabs and rounded once. `width` is a multiple of 8, rows of `out` start on 16 bytes.
cudaError_t LaunchAddWindowParts(const WindowSlabs& slabs, int64_t longest, int64_t width,
                                 const WindowGradient& dk, const WindowGradient& dv,
                                 cudaStream_t stream);

}  // namespace sft::engine::cuda
