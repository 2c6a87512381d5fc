#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/round.h"

// Division of attention's backward into cuDNN calls, with the workspace of each: by documents and
// by key heads and, where one key head of one document needs too much, by slabs of queries. The
// engine makes its calls by it (worker/engine/cuda/cudnn_attention.h, cudnn_slabs.h) and the plan
// counts their memory by it (block.h). Everything is in this header because the CUDA library takes
// no code from the program that opens it. Pure functions; bytes.

namespace sft::plan {

// Expected workspace limits of one call: for several heads or documents, and for one head of one
// document. A plan of cuDNN's that in fact needs more than 6/5 of it is not used.
inline constexpr int64_t kCudnnWorkspace = int64_t{5} << 28;  // 1.25 GiB
inline constexpr int64_t kCudnnMost = int64_t{9} << 29;  // 4.5 GiB: 16,384 tokens, 8 heads to a key
                                                         // head

// Pairs of a query and a key that it sees in a document of `length` tokens, of which a window
// leaves each query so many; 0: all before it.
inline double SeenPairs(int64_t length, int64_t window) {
  const double n = static_cast<double>(length);
  if (window == 0 || window >= length) return n * (n + 1) / 2;
  const double w = static_cast<double>(window);
  return w * (w + 1) / 2 + (n - w) * w;
}

// Queries per slab. Larger slabs are no faster: queries times heads already keep the GPU busy.
inline constexpr int64_t kSlab = 4096;
inline constexpr int64_t kLeastSlab = 128;
// The most that one key head may need before slabs get smaller: 4,096 queries of 131,072 tokens, 4
// heads to a key head, or 2,048 of them with 8.
inline constexpr int64_t kSlabWorkspace = int64_t{5} << 30;
// Workspace of several key heads per token: a call with two of 4 query heads each runs a seventh
// faster than one with one of them, and more are no faster. At least kCudnnWorkspace, at most
// kSlabWorkspace.
inline constexpr int64_t kWorkspaceOfToken = int64_t{80} << 10;

// The first key of a slab that begins with query `first`: one of its queries may see it, and it
// begins a tile.
inline int64_t SlabFirstKey(int64_t first, int64_t window) {
  constexpr int64_t kTile = 128;
  return window > 0 ? std::max<int64_t>(0, first - window + 1) / kTile * kTile : 0;
}

// A window's backward in slabs: queries per slab, and the keys before its first query that one of
// its queries may see, in whole tiles.
inline constexpr int64_t kWindowSlab = 512;
inline int64_t WindowKeysBefore(int64_t window) { return RoundUp(window - 1, 128); }

// Where the backward in turns (worker/engine/cuda/ordered_backward.h) is the fastest in a fixed
// order: the size of heads, the shortest document without a window, and the shortest one that a
// window cuts; then the same of smaller heads.
inline constexpr int64_t kTurnsHead = 128;
inline constexpr int64_t kTurnsLength = 8192;
inline constexpr int64_t kTurnsWindowLength = 4096;
inline constexpr int64_t kTurnsSmallHead = 64;
inline constexpr int64_t kTurnsSmallLength = 4096;
inline constexpr int64_t kTurnsSmallWindowLength = 1024;

// Tokens of a chunk of the gated delta rule, and the most that its CUDA kernels leave to each other
// at a time (worker/engine/cuda/delta_ops.cc).
inline constexpr int64_t kDeltaChunk = 64;
inline constexpr int64_t kDeltaWorkspace = int64_t{3} << 29;

// Attention's heads, and whether its backward sums in a fixed order.
struct BackwardHeads {
  int64_t kv_heads = 0;
  int64_t group = 1;  // query heads to a key head
  int64_t head_dim = 0;
  bool deterministic = true;

  // The workspace of one key head of one document with its query heads: the gradients of the scores
  // in bf16, or sums of dq in fp32; for each query head the gradients of its keys and values in
  // bf16, and its sums of dout * out.
  int64_t Workspace(int64_t queries, int64_t keys) const {
    const int64_t scores =
        deterministic ? RoundUp(queries, 64) * RoundUp(keys, 128) * 2 : queries * head_dim * 4;
    const int64_t full_heads = group > 1 ? 2 * keys * head_dim * 2 : 0;
    return group * (scores + full_heads + queries * 4);
  }
  // True when documents of `longest` tokens are processed in turns, on a GPU that can.
  bool InTurns(int64_t longest, int64_t window) const {
    if (!deterministic) return false;
    const bool cuts = window > 0 && 2 * window <= longest;
    if (head_dim == kTurnsSmallHead) {
      return longest >= (cuts ? kTurnsSmallWindowLength : kTurnsSmallLength);
    }
    return head_dim == kTurnsHead && longest >= (cuts ? kTurnsWindowLength : kTurnsLength);
  }
  // What that needs for `tokens` tokens: sums of dq and two statistics in fp32.
  int64_t TurnsWorkspace(int64_t tokens) const {
    return kv_heads * group * tokens * (head_dim + 2) * 4;
  }
  // True when documents of `longest` tokens are processed in slabs of queries.
  bool InSlabs(int64_t longest) const { return Workspace(longest, longest) > kCudnnMost; }
  // True when documents of `longest` tokens are processed in slabs of queries with the keys that
  // the window leaves them, all slabs at once. A fixed order of summation otherwise goes over all
  // keys before a query; it pays off where it saves a fifth of them.
  bool InWindowSlabs(int64_t longest, int64_t window) const {
    if (!deterministic || window <= 0) return false;
    return 5 * (2 * WindowKeysBefore(window) + kWindowSlab) <= 4 * longest;
  }
};

// Documents and key heads of one call, where whole documents fit. A call's statistics must be
// dense, so heads are divided only within one document.
struct BackwardCall {
  int64_t documents = 1, kv_heads = 1;
};
inline BackwardCall CallOf(const BackwardHeads& heads, int64_t documents, int64_t longest) {
  const int64_t units = std::max<int64_t>(1, kCudnnWorkspace / heads.Workspace(longest, longest));
  if (units < heads.kv_heads) return {1, LargestDivisor(heads.kv_heads, units)};
  return {LargestDivisor(documents, units / heads.kv_heads), heads.kv_heads};
}

// Slabs and key heads of one call over a window's slabs; `calls` of them for each group of key
// heads, where the last slabs of the last call may be empty.
struct WindowCall {
  int64_t slabs = 1, kv_heads = 1, calls = 1;

  int64_t Planned() const { return slabs * calls; }
};
// For `slabs` slabs of all documents. Half of kCudnnWorkspace for the call, half for what all slabs
// add to the gradients of the keys and values of its heads, bf16.
inline WindowCall WindowCallOf(const BackwardHeads& heads, int64_t slabs, int64_t window) {
  const int64_t keys = kWindowSlab + WindowKeysBefore(window);
  const int64_t parts = slabs * 2 * keys * heads.head_dim * 2;
  WindowCall call;
  call.kv_heads = LargestDivisor(heads.kv_heads, std::max<int64_t>(1, kCudnnWorkspace / 2 / parts));
  const int64_t workspace = call.kv_heads * heads.Workspace(kWindowSlab, keys);
  const int64_t most = std::max<int64_t>(1, kCudnnWorkspace / 2 / workspace);
  call.calls = (slabs + most - 1) / most;
  call.slabs = (slabs + call.calls - 1) / call.calls;
  return call;
}

// Queries per slab for documents of `longest` tokens.
inline int64_t SlabQueries(const BackwardHeads& heads, int64_t longest) {
  int64_t queries = kSlab;
  while (queries > kLeastSlab && heads.Workspace(queries, longest) > kSlabWorkspace) queries /= 2;
  return queries;
}

// The most keys that a slab of so many queries sees.
inline int64_t MostSlabKeys(int64_t longest, int64_t queries, int64_t window) {
  int64_t most = 0;
  for (int64_t first = 0; first < longest; first += queries) {
    most = std::max(most, std::min(first + queries, longest) - SlabFirstKey(first, window));
  }
  return most;
}

// The workspace limit of a call over a slab that sees `keys` keys, and the key heads in it.
inline int64_t SlabBudget(int64_t keys) {
  return std::clamp(kWorkspaceOfToken * keys, kCudnnWorkspace, kSlabWorkspace);
}
inline int64_t SlabKeyHeads(const BackwardHeads& heads, int64_t queries, int64_t keys) {
  const int64_t units = std::max<int64_t>(1, SlabBudget(keys) / heads.Workspace(queries, keys));
  return LargestDivisor(heads.kv_heads, units);
}

// Heads beyond this have no fused attention: plain products in fp32 serve them, a document, some of
// its key heads and a block of queries at a time.
inline constexpr int64_t kLargestFusedHead = 256;
// Scores of one such step, in fp32.
inline constexpr int64_t kPlainScores = int64_t{256} << 20;
inline constexpr int64_t kLeastPlainQueries = 64;

// Key heads of one document that a step takes, and queries of a block.
struct PlainStep {
  int64_t kv_heads = 1, queries = 1;
};
inline PlainStep PlainStepOf(const BackwardHeads& heads, int64_t length) {
  const int64_t row = heads.group * length * 4;  // bytes of a query's scores, of one key head
  const int64_t whole = std::max<int64_t>(1, kPlainScores / std::max<int64_t>(1, row * length));
  if (row * length <= kPlainScores) return {LargestDivisor(heads.kv_heads, whole), length};
  return {1, std::min(length, std::max(kLeastPlainQueries, kPlainScores / row))};
}

// What the backward of a step holds: the scores, their gradient and a product on its way to each;
// in fp32 the rows of queries, outputs and both gradients of the step's heads, and of its keys and
// values with their gradients.
inline int64_t PlainWorkspace(const BackwardHeads& heads, int64_t length) {
  const PlainStep step = PlainStepOf(heads, length);
  const int64_t scores = step.kv_heads * heads.group * step.queries * length * 4;
  const int64_t rows = step.kv_heads * (heads.group + 1) * length * heads.head_dim * 4;
  return 4 * scores + 4 * rows;
}

}  // namespace sft::plan
