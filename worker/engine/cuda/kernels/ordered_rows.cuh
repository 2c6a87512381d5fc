// What comes before and after the products of attention's backward in turns (ordered_backward.h):
// statistics of the rows of queries, and their gradients in bf16. Blocks of queries are numbered
// over all documents, those of a document one after the other.
#pragma once

#include <cuda_bf16.h>
#include <math_constants.h>

#include "worker/engine/cuda/kernels/mma.cuh"
#include "worker/engine/cuda/kernels/ordered_backward.h"

namespace sft::engine::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ int FirstBlock(const OrderedBatch& batch, int document) {
  return batch.cu_seqlens[document] / kOrderedQueries + document;
}

// The document and the block in it that block `block` of all is; false where there is none.
struct QueryBlock {
  int document, m, first_token, length;
};
__device__ __forceinline__ bool FindBlock(const OrderedBatch& batch, int block, QueryBlock* found) {
  int low = 0, high = batch.documents - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (FirstBlock(batch, middle) <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  found->document = low;
  found->m = block - FirstBlock(batch, low);
  found->first_token = batch.cu_seqlens[low];
  found->length = batch.cu_seqlens[low + 1] - found->first_token;
  return found->m * kOrderedQueries < found->length;
}

__device__ __forceinline__ float2 PairAt(uint32_t bits) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bits));
}

// A thread block for each block of queries of a head, a warp for a row: its logsumexp to the base
// 2, infinite behind the document's end, and its delta. Sets the counters to 0.
template <int kD>
__global__ void PrepareRows(OrderedBatch batch, ConstRows out, ConstRows dout, const float* lse,
                            OrderedWorkspace workspace) {
  const int head = blockIdx.y, lane = threadIdx.x % 32;
  const int64_t at = int64_t{head} * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) {
    workspace.turns[at] = 0;
    if (at == 0) *workspace.ticket = 0;
  }
  QueryBlock block;
  if (!FindBlock(batch, blockIdx.x, &block)) return;
  constexpr int kPairs = kD / 64;  // that a lane has
  const auto pair = [&](const ConstRows& rows, int64_t token, int i) {
    return PairAt(*reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(rows.data) +
                                                     token * rows.stride + head * kD +
                                                     (lane * kPairs + i) * 2));
  };
  for (int r = threadIdx.x / 32; r < kOrderedQueries; r += blockDim.x / 32) {
    const int row = block.m * kOrderedQueries + r;
    const bool there = row < block.length;
    float sum = 0.0f;
    if (there) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float2 x = pair(out, block.first_token + row, i);
        const float2 y = pair(dout, block.first_token + row, i);
        sum += x.x * y.x + x.y * y.y;
      }
    }
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane != 0) continue;
    const int64_t of = (int64_t{block.document} * batch.heads + head) * batch.longest + row;
    workspace.lse[at * kOrderedQueries + r] = there ? lse[of] * kLog2E : CUDART_INF_F;
    workspace.delta[at * kOrderedQueries + r] = sum;
  }
}

// dq in bf16, from the order of elements in which the threads that multiply have it. A thread block
// for each block of queries of a head.
template <int kD>
__global__ void FinishRows(OrderedBatch batch, const float* sums, MutableRows dq) {
  constexpr int kWidth = kD + 8;  // of a row in shared memory: rows begin in other banks
  __shared__ alignas(16) __nv_bfloat16 rows[kOrderedQueries * kWidth];
  const int head = blockIdx.y;
  QueryBlock block;
  if (!FindBlock(batch, blockIdx.x, &block)) return;
  const float4* from = reinterpret_cast<const float4*>(sums) +
                       (int64_t{head} * gridDim.x + blockIdx.x) * (kOrderedQueries * kD / 4);
  const float scale = batch.scale;
  for (int i = threadIdx.x; i < kOrderedQueries * kD / 4; i += blockDim.x) {
    const float4 x = from[i];
    const int thread = i % 128, lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4;
    constexpr int kOfGroup = kOrderedQueries * kD / 8;  // float4s
    const int column = i / kOfGroup * (kD / 2) + i / 128 % (kD / 16) * 8 + lane % 4 * 2;
    *reinterpret_cast<uint32_t*>(rows + row * kWidth + column) = PackPair(x.x * scale, x.y * scale);
    *reinterpret_cast<uint32_t*>(rows + (row + 8) * kWidth + column) =
        PackPair(x.z * scale, x.w * scale);
  }
  __syncthreads();
  constexpr int kPieces = kD / 8;  // of 16 bytes, in a row
  for (int i = threadIdx.x; i < kOrderedQueries * kPieces; i += blockDim.x) {
    const int row = i / kPieces, column = i % kPieces * 8;
    const int token = block.m * kOrderedQueries + row;
    if (token >= block.length) return;
    *reinterpret_cast<uint4*>(
        static_cast<__nv_bfloat16*>(dq.data) + (int64_t{block.first_token} + token) * dq.stride +
        head * kD + column) = *reinterpret_cast<const uint4*>(rows + row * kWidth + column);
  }
}

}  // namespace sft::engine::cuda
