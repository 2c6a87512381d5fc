#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/round.h"

// Division of attention's backward into calls of cuDNN on a GPU, and the workspace that each takes:
// by documents and by key heads, where one key head of one document needs too much by slabs of
// queries as well. The engine makes its calls by it (worker/engine/cuda/cudnn_attention.h,
// cudnn_slabs.h) and the plan counts their memory by it (block.h). All is here in the header, since
// the CUDA library takes no code from the program that opens it. Pure functions; bytes.

namespace sft::plan {

// What one call may be expected to need: of several heads or documents, and of one head of one. A
// plan of cuDNN's that in fact needs more than 6/5 of it is not used.
inline constexpr int64_t kCudnnWorkspace = int64_t{5} << 28;  // 1.25 GiB
inline constexpr int64_t kCudnnMost = int64_t{9} << 29;  // 4.5 GiB: 16,384 tokens, 8 heads to a key
                                                         // head

// Queries of a slab. More are no faster: what a call keeps busy is its queries times its heads.
inline constexpr int64_t kSlab = 4096;
inline constexpr int64_t kLeastSlab = 128;
// What one key head may need, or a slab is smaller: 4,096 queries of 131,072 tokens, 4 heads to a
// key head, or 2,048 of them with 8.
inline constexpr int64_t kSlabWorkspace = int64_t{5} << 30;
// Of several key heads, for each token: a call with two of 4 query heads each runs a seventh faster
// than one with one of them, and more are no faster. At least kCudnnWorkspace, at most
// kSlabWorkspace.
inline constexpr int64_t kWorkspaceOfToken = int64_t{80} << 10;

// The heads of an attention, and whether its backward adds up in a fixed order.
struct BackwardHeads {
  int64_t kv_heads = 0;
  int64_t group = 1;  // query heads to a key head
  int64_t head_dim = 0;
  bool deterministic = true;

  // The workspace of one key head of one document with its query heads: gradients of the scores in
  // bf16, or sums of dq in fp32; of each query head the gradients of its keys and values in bf16;
  // its sums of dout * out.
  int64_t Workspace(int64_t queries, int64_t keys) const {
    const int64_t scores =
        deterministic ? RoundUp(queries, 64) * RoundUp(keys, 128) * 2 : queries * head_dim * 4;
    const int64_t full_heads = group > 1 ? 2 * keys * head_dim * 2 : 0;
    return group * (scores + full_heads + queries * 4);
  }
  // Whether documents of `longest` tokens go in slabs of queries.
  bool InSlabs(int64_t longest) const { return Workspace(longest, longest) > kCudnnMost; }
};

// Documents and key heads of one call, where whole documents fit. The statistics of a call must be
// dense: parts of the heads only of one document.
struct BackwardCall {
  int64_t documents = 1, kv_heads = 1;
};
inline BackwardCall CallOf(const BackwardHeads& heads, int64_t documents, int64_t longest) {
  const int64_t units = std::max<int64_t>(1, kCudnnWorkspace / heads.Workspace(longest, longest));
  if (units < heads.kv_heads) return {1, LargestDivisor(heads.kv_heads, units)};
  return {LargestDivisor(documents, units / heads.kv_heads), heads.kv_heads};
}

// Queries of a slab of documents of `longest` tokens.
inline int64_t SlabQueries(const BackwardHeads& heads, int64_t longest) {
  int64_t queries = kSlab;
  while (queries > kLeastSlab && heads.Workspace(queries, longest) > kSlabWorkspace) queries /= 2;
  return queries;
}

// What a call over a slab that sees `keys` keys may need, and the key heads in it.
inline int64_t SlabBudget(int64_t keys) {
  return std::clamp(kWorkspaceOfToken * keys, kCudnnWorkspace, kSlabWorkspace);
}
inline int64_t SlabKeyHeads(const BackwardHeads& heads, int64_t queries, int64_t keys) {
  const int64_t units = std::max<int64_t>(1, SlabBudget(keys) / heads.Workspace(queries, keys));
  return LargestDivisor(heads.kv_heads, units);
}

}  // namespace sft::plan
