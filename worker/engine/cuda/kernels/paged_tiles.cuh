// Attention of 16 rows of queries of one key head to keys and values in pages, on tensor cores:
// what the kernels for single tokens and for pieces of prompts share.
#pragma once

#include <cmath>

#include "worker/engine/cuda/kernels/mma.cuh"
#include "worker/engine/cuda/kernels/paged_attention.h"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda::paged {

using Bf16 = __nv_bfloat16;

inline constexpr float kLog2E = 1.44269504f;

// What a head's sink adds to the sum of weights, beside the largest score in units of log2.
__device__ __forceinline__ float SinkWeight(const PagedShape& shape, int64_t head, float largest) {
  return shape.sinks != nullptr ? exp2f(shape.sinks[head] * kLog2E - largest) : 0.0f;
}

// A row of kSize elements in shared memory and what keeps eight rows in different banks.
template <int kSize>
inline constexpr int kRowElements = kSize + 8;

// The keys or values of one key head of one request.
struct HeadOfRequest {
  const Bf16* pages;
  const int32_t* table;
  int64_t token_stride;  // elements between tokens of a page
  int page;

  __device__ __forceinline__ const Bf16* At(int64_t position) const {
    const int64_t slot = static_cast<int64_t>(table[position / page]) * page + position % page;
    return pages + slot * token_stride;
  }
};

// Copies the heads of positions [first, first + count) into rows of shared memory, by `threads`
// threads of which this is number `thread`; zeros beyond `last`.
template <int kSize>
__device__ __forceinline__ void CopyHeads(Bf16* rows, const HeadOfRequest& head, int64_t first,
                                          int count, int64_t last, int thread, int threads) {
  constexpr int kPieces = kSize / 8;
  for (int i = thread; i < count * kPieces; i += threads) {
    const int row = i / kPieces, piece = i % kPieces;
    const int64_t position = first + row;
    const bool there = position <= last;
    CopyAsync(rows + row * kRowElements<kSize> + piece * 8,
              head.At(there ? position : last) + piece * 8, there);
  }
}

// 16 rows of queries as fragments, and their softmax so far: sums of values, and for the two rows
// that a lane has of them the largest score (in units of log2) and the sum of weights, this one
// only of the columns that the lane saw.
template <int kSize>
struct Rows {
  uint32_t q[kSize / 16][4];
  float sums[kSize / 8][4];
  float largest[2], total[2];

  __device__ __forceinline__ void Start() {
    for (auto& tile : sums) {
      for (float& x : tile) x = 0.0f;
    }
    largest[0] = largest[1] = -INFINITY;
    total[0] = total[1] = 0.0f;
  }

  // Rows of queries dense in shared memory, kRowElements apart.
  __device__ __forceinline__ void LoadQueries(const Bf16* rows, int lane) {
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      LoadMatrices(q[k], rows + (lane % 16) * kRowElements<kSize> + k * 16 + lane / 16 * 8);
    }
  }

  // Takes the 16 keys and values in these rows of shared memory, the first at position `first`. The
  // rows of this lane see positions [begin, end] of theirs; end -1: none, and nothing of these
  // values reaches them, also if those are not numbers.
  __device__ __forceinline__ void Take(const Bf16* keys, const Bf16* values, int64_t first,
                                       const int64_t (&begin)[2], const int64_t (&end)[2],
                                       float scale_log2, int lane) {
    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSize / 16; ++k) {
      uint32_t b[4];  // keys 0..7: dims 0..7, 8..15; keys 8..15 likewise
      LoadMatrices(
          b, keys + (lane % 8 + lane / 16 * 8) * kRowElements<kSize> + k * 16 + lane / 8 % 2 * 8);
      MultiplyAdd(scores[0], q[k], b[0], b[1]);
      MultiplyAdd(scores[1], q[k], b[2], b[3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // rows lane / 4 and lane / 4 + 8
      float most = largest[half];
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t position = first + tile * 8 + lane % 4 * 2 + i;
          float& score = scores[tile][half * 2 + i];
          const bool seen = position >= begin[half] && position <= end[half];
          score = seen ? score * scale_log2 : -INFINITY;
          most = fmaxf(most, score);
        }
      }
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      // Nothing seen yet: weights are 0, and there is no sum that could shrink.
      const float base = most == -INFINITY ? 0.0f : most;
      const float kept = exp2f(largest[half] - base);
      largest[half] = most;
      total[half] *= kept;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[tile][half * 2 + i];
          score = exp2f(score - base);
          total[half] += score;
        }
      }
#pragma unroll
      for (auto& tile : sums) {
        tile[half * 2] *= kept;
        tile[half * 2 + 1] *= kept;
      }
    }
    const uint32_t weights[4] = {
        PackPair(scores[0][0], scores[0][1]), PackPair(scores[0][2], scores[0][3]),
        PackPair(scores[1][0], scores[1][1]), PackPair(scores[1][2], scores[1][3])};
    if (__any_sync(kAllLanes, end[0] < 0 || end[1] < 0)) {
      AddValues<true>(weights, values, end, lane);
    } else {
      AddValues<false>(weights, values, end, lane);
    }
  }

  // The sum of weights of row `half`, of all its columns.
  __device__ __forceinline__ float Total(int half) const {
    float sum = total[half];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    return sum + __shfl_xor_sync(kAllLanes, sum, 2);
  }

 private:
  template <bool kSomeSeeNone>
  __device__ __forceinline__ void AddValues(const uint32_t (&weights)[4], const Bf16* values,
                                            const int64_t (&end)[2], int lane) {
#pragma unroll
    for (int tile = 0; tile < kSize / 8; tile += 2) {
      uint32_t b[4];  // dims 0..7: keys 0..7, 8..15; dims 8..15 likewise
      LoadTransposed(b, values + (lane % 16) * kRowElements<kSize> + tile * 8 + lane / 16 * 8);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float(&sum)[4] = sums[tile + i];
        const float before[4] = {sum[0], sum[1], sum[2], sum[3]};
        MultiplyAdd(sum, weights, b[2 * i], b[2 * i + 1]);
        if constexpr (kSomeSeeNone) {  // a weight of 0 times NaN is NaN
#pragma unroll
          for (int at = 0; at < 4; ++at) {
            if (end[at / 2] < 0) sum[at] = before[at];
          }
        }
      }
    }
  }
};

// The first position that the token at `position` sees.
__device__ __forceinline__ int64_t FirstSeen(int64_t position, int64_t window) {
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

// Calls `launch` with the head size as a constant; false where there is no kernel for it.
template <typename Launch>
bool WithHeadSize(int size, const Launch& launch) {
  switch (size) {
    case 32:
      launch(std::integral_constant<int, 32>());
      return true;
    case 64:
      launch(std::integral_constant<int, 64>());
      return true;
    case 96:
      launch(std::integral_constant<int, 96>());
      return true;
    case 128:
      launch(std::integral_constant<int, 128>());
      return true;
    case 256:
      launch(std::integral_constant<int, 256>());
      return true;
    default:
      return false;
  }
}

}  // namespace sft::engine::cuda::paged
