// Launchers of the kernels around attention's backward in slabs of queries; see launch.h for what
// all launchers keep to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// A slab: some queries of one document, and the keys that any of them sees. Tokens count from the
// document's first. What lies behind the document's end is not there.
struct Slab {
  int32_t first = 0;  // query
  int32_t queries = 0;
  int32_t first_key = 0;       // the keys end where the queries do
  int32_t next_first_key = 0;  // of the slab after it; the last slab's own end

  __host__ __device__ int32_t end() const { return first + queries; }
  __host__ __device__ int32_t keys() const { return end() - first_key; }
};

// One of the documents that cu_seqlens, with documents + 1 entries, delimits. One beyond them is
// empty.
struct SlabDocument {
  const int32_t* cu_seqlens = nullptr;
  int32_t documents = 0;
  int32_t index = 0;
};

// The operands of a call, as cuDNN's packed layout has them.
struct SlabOperands {
  static constexpr int kMost = 8;
  int32_t count = 0;
  int64_t token_strides[kMost] = {};
  bool has_keys[kMost] = {};  // rows are keys, not queries
  bool is_part[kMost] = {};   // begins at 0, whatever the document
};
// Where each operand of a slab begins and ends, in elements: offsets [operands, 2]. How many
// queries and keys there are: lengths, at 0 and at kSlabKeyLength.
inline constexpr int kSlabKeyLength = 4;
inline constexpr int kSlabLengths = 8;
cudaError_t LaunchSlabOffsets(const SlabOperands& operands, const SlabDocument& document,
                              const Slab& slab, int64_t* offsets, int32_t* lengths,
                              cudaStream_t stream);

// Gradients of keys or values, bf16 rows of `width` elements: `part` [slab.keys, width] is what
// this slab adds. Rows that no later slab adds to go to `out`, whose first row is the first
// document's first token; the others are kept in `sums` [keys of the document, width].
struct SlabGradient {
  const void* part = nullptr;
  float* sums = nullptr;
  MutableRows out;
};
// For dk and dv at once. `width` is a multiple of 8, rows of `out` start on 16 bytes.
cudaError_t LaunchAddSlab(const SlabDocument& document, const Slab& slab, int64_t width,
                          const SlabGradient& dk, const SlabGradient& dv, cudaStream_t stream);

}  // namespace sft::engine::cuda
