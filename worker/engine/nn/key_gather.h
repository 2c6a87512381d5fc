#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

// The tokens of a micro-batch that one of several nodes has: of twice as many pieces as nodes, all
// of one length, two: node i of n has piece i and piece 2 n - 1 - i, so that all have as much to do
// in causal attention over a long document. In this order; `tokens` is a multiple of 2 n.
std::vector<int32_t> TokensOfNode(int64_t tokens, int node, int nodes);

// Attention of a micro-batch whose tokens are cut over nodes, as Llama 3 was trained
// (arXiv:2407.21783, section 3.3.2): a node's queries attend to keys and values that are gathered
// from all nodes, and what they leave there is summed in the order of the nodes. The heads are
// those that the ranks have already (head_exchange.h). Made for a micro-batch. Gather and Return
// are collectives of the group, of a rank of each node. Thread-compatible.
class KeyGather {
 public:
  // One of the node's two pieces: some of its queries with the keys that they may see.
  struct Run {
    int64_t first = 0, count = 0;     // queries, among the node's tokens
    int64_t number = 0;               // of the first query among all tokens
    int64_t first_key = 0, keys = 0;  // among all tokens
    std::vector<int64_t> lengths, key_lengths;
    at::Tensor cu_seqlens, key_cu_seqlens;

    ops::Documents documents() const { return {cu_seqlens, lengths, key_cu_seqlens, key_lengths}; }
  };
  // Keys and values of all tokens, in their order, side by side in `rows`.
  struct Keys {
    at::Tensor rows;  // [T, 2 kv_heads, D]
    at::Tensor k, v;  // views of it

    explicit Keys(at::Tensor of)
        : rows(std::move(of)),
          k(rows.narrow(1, 0, rows.size(1) / 2)),
          v(rows.narrow(1, rows.size(1) / 2, rows.size(1) / 2)) {}
  };

  // `lengths`: of the documents, whose sum is a multiple of twice the nodes. Borrows `nodes`.
  KeyGather(Communicator& nodes, at::IntArrayRef lengths, at::Device device);

  const std::vector<Run>& runs() const { return runs_; }
  // k and v [T/nodes, kv_heads, D], of the node's tokens.
  Keys Gather(const at::Tensor& k, const at::Tensor& v) const;
  // Room for the sums of their gradients over the runs, fp32 and zero.
  Keys Zeros(const at::Tensor& k) const;
  // Writes to dk and dv what all nodes' queries leave at the node's tokens.
  void Return(const Keys& gradient, at::Tensor dk, at::Tensor dv) const;

 private:
  Communicator& nodes_;
  std::vector<Run> runs_;
};

}  // namespace sft::engine
