// The gated delta rule on tensor cores: bf16 heads of one size, 64 or 128, for keys and values. The
// formulas are those of worker/engine/kernels/gated_delta_cpu.cc, in three kernels:
//
//   delta_prepare.cu    for all chunks at once: the units q^ and k^, (I + A)^-1, U, W and P
//   delta_scan.cu       from chunk to chunk of a document, by columns of the state, which do not
//                       touch each other: the state and the output; or backwards its gradient
//   delta_gradients.cu  for all chunks at once: the gradients, of the states and theirs
//
// What one kernel leaves to the next lies in slots, one for each chunk. Documents have slots of
// their own: document d, which starts at token t, those from t / 64 + d on. Some slots stay unused.
// A launch takes a range of slots, the state between two ranges being kept in fp32: the workspace
// is that of a range, and results do not depend on where ranges end.
//
// Operands of products are bf16; sums, states, decays and (I + A)^-1 are fp32, and a factor is
// multiplied with it before a value is rounded. Tokens beyond a document's end are rows of zeros
// that decay by nothing.
#pragma once

#include "worker/engine/cuda/kernels/delta_chunks.h"
#include "worker/engine/cuda/kernels/mma.cuh"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda::delta {

using Bf16 = __nv_bfloat16;

inline constexpr int kChunk = kDeltaSlotTokens;
inline constexpr float kEpsilon = 1e-6f;  // beside |q|^2 and |k|^2

// Elements from row to row in shared memory: 16 bytes more than the row, so that eight rows of 16
// bytes lie in different banks.
template <int kColumns>
inline constexpr int kPitch = kColumns + 8;

// The tokens of a slot.
struct Place {
  int64_t first = 0;
  int count = 0;  // 0: no chunk is here
};

__device__ __forceinline__ int64_t FirstSlot(const int32_t* cu_seqlens, int64_t document) {
  return cu_seqlens[document] / kChunk + document;
}

__device__ __forceinline__ Place PlaceOf(const DocumentList& list, int64_t slot) {
  int32_t low = 0, high = list.documents - 1;  // the last document whose first slot is this or less
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (FirstSlot(list.cu_seqlens, middle) <= slot) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t first = list.cu_seqlens[low] + (slot - FirstSlot(list.cu_seqlens, low)) * kChunk;
  const int64_t left = list.cu_seqlens[low + 1] - first;
  return {first, static_cast<int>(left < 0 ? 0 : left < kChunk ? left : kChunk)};
}

// Starts the copy of `rows` rows of kColumns bf16, `stride` elements apart, into shared memory by
// kThreads threads; rows from `there` on become zeros.
template <int kColumns, int kThreads>
__device__ __forceinline__ void CopyTile(Bf16* to, const Bf16* from, int64_t stride, int rows,
                                         int there) {
  constexpr int kPieces = kColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool is_there = row < there;
    CopyAsync(to + row * kPitch<kColumns> + piece * 8,
              from + (is_there ? row * stride : 0) + piece * 8, is_there);
  }
}

// How a matrix of a product lies in memory: by its rows, or by its columns.
enum class Stored { kRows, kColumns };

// sums [16, 8 kTiles] += a [16, kDepth] b [kDepth, 8 kTiles], of a warp. a and b point at their
// first elements in shared memory; a_pitch and b_pitch are the elements from one stored row, or
// column, to the next. kTiles is even.
template <Stored kA, Stored kB, int kDepth, int kTiles>
__device__ __forceinline__ void Multiply(float (&sums)[kTiles][4], const Bf16* a, int a_pitch,
                                         const Bf16* b, int b_pitch) {
  static_assert(kTiles % 2 == 0 && kDepth % 16 == 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int low = lane % 8, odd = lane / 8 % 2 * 8, upper = lane / 16 * 8;
#pragma unroll
  for (int depth = 0; depth < kDepth; depth += 16) {
    uint32_t of_a[4];
    if constexpr (kA == Stored::kRows) {
      LoadMatrices(of_a, a + (odd + low) * a_pitch + depth + upper);
    } else {
      LoadTransposed(of_a, a + (depth + upper + low) * a_pitch + odd);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      uint32_t of_b[4];
      if constexpr (kB == Stored::kRows) {
        LoadTransposed(of_b, b + (depth + odd + low) * b_pitch + tile * 8 + upper);
      } else {
        LoadMatrices(of_b, b + (tile * 8 + upper + low) * b_pitch + depth + odd);
      }
      MultiplyAdd(sums[tile], of_a, of_b[0], of_b[1]);
      MultiplyAdd(sums[tile + 1], of_a, of_b[2], of_b[3]);
    }
  }
}

// Where this lane's sums of a warp's [16, 8 kTiles] lie: sums[t][0] and [1] in row Row(0), columns
// Column(t) and the next, [2] and [3] in row Row(1).
__device__ __forceinline__ int RowOf(int half) {
  return static_cast<int>(threadIdx.x) % kWarp / 4 + half * 8;
}
__device__ __forceinline__ int ColumnOf(int tile) {
  return tile * 8 + static_cast<int>(threadIdx.x) % 4 * 2;
}

// Two neighbouring values in bf16, at an even column.
__device__ __forceinline__ void StorePair(Bf16* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = PackPair(low, high);
}
__device__ __forceinline__ float2 LoadPair(const Bf16* from) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(from);
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// Stores sums, times a factor for each half, as bf16 from `to` on, the place of row 0.
template <int kTiles>
__device__ __forceinline__ void StoreSums(Bf16* to, int64_t pitch, const float (&sums)[kTiles][4],
                                          float first = 1.0f, float second = 1.0f) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Bf16* at = to + RowOf(0) * pitch + ColumnOf(tile);
    StorePair(at, sums[tile][0] * first, sums[tile][1] * first);
    StorePair(at + 8 * pitch, sums[tile][2] * second, sums[tile][3] * second);
  }
}

// The sum over the four lanes that share a row; all get it.
__device__ __forceinline__ float QuadSum(float x) { return GroupSum<4>(x); }

// c[i] = the sum of g up to token i of the chunk, in fp64, whose differences are exponents; by one
// warp. Tokens that are not there decay by nothing.
__device__ __forceinline__ void SumDecays(const float* g, int64_t stride, int count, double* c) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double carry = 0.0;
#pragma unroll
  for (int first = 0; first < kChunk; first += kWarp) {
    const int i = first + lane;
    double sum = i < count ? static_cast<double>(g[i * stride]) : 0.0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const double before = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += before;
    }
    sum += carry;
    c[i] = sum;
    carry = __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
}

__device__ __forceinline__ float Decay(double later, double earlier) {
  return __expf(static_cast<float>(later - earlier));
}

}  // namespace sft::engine::cuda::delta
