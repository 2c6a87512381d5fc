// Attention's backward on Hopper in one kernel that sums in a fixed order; see launch.h for what
// all launchers keep to.
//
// A thread block has 128 keys of one key head and walks over the blocks of 64 queries that see
// them, of each query head of the group in turn, as FlashAttention-3 does: two warp groups
// multiply, one thread fetches tiles by TMA, two send the queries' gradients away. dk and dv stay
// in registers. dq is summed in fp32 in memory: each block of queries has a counter, and the thread
// blocks that add to it wait for their turn, by the number of their keys. Thread blocks take their
// keys in an order of tickets in which whoever is waited for began before. The workspace grows with
// the tokens, not with the scores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

inline constexpr int kOrderedQueries = 64, kOrderedKeys = 128;

// A batch of documents that cu_seqlens [documents + 1] delimits, none longer than `longest`.
struct OrderedBatch {
  const int32_t* cu_seqlens = nullptr;
  int32_t documents = 0;
  int64_t tokens = 0;
  int64_t longest = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_size = 0;  // 64 or 128
  int32_t window = 0;     // 0: all
  float scale = 0.0f;

  // Blocks of queries, those that begin within a document: document d's first is at
  // cu_seqlens[d] / kOrderedQueries + d.
  int64_t Blocks() const { return tokens / kOrderedQueries + documents; }
};

// What the launch needs beside its operands. Nothing in it has to be set before.
struct OrderedWorkspace {
  float* dq = nullptr;        // [heads, Blocks, kOrderedQueries * head_size]
  float* lse = nullptr;       // [heads, Blocks, kOrderedQueries]
  float* delta = nullptr;     // as lse
  int32_t* turns = nullptr;   // [heads, Blocks]
  int32_t* ticket = nullptr;  // [1]
};

// Rows are tokens, heads of head_size elements are dense within them; bf16. Strides are
// multiples of 8 and rows start on 16 bytes.
struct OrderedOperands {
  ConstRows q, k, v, out, dout;
  const float* lse = nullptr;  // [documents, heads, longest]
  MutableRows dq, dk, dv;
};

// For compute capability 9.0 alone.
cudaError_t LaunchOrderedBackward(const OrderedBatch& batch, const OrderedOperands& operands,
                                  const OrderedWorkspace& workspace, cudaStream_t stream);

}  // namespace sft::engine::cuda
