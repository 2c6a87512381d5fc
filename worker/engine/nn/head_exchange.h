#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// Attention of a micro-batch whose tokens are cut over the ranks of a context group, as DeepSpeed's
// Ulysses does it (arXiv:2309.14509). Rank r of n has the tokens [r T/n, (r + 1) T/n) and all
// heads. For attention it has all T tokens of its own heads, [r heads/n, (r + 1) heads/n), and of
// the heads of keys that these attend to. Attention itself is as on one rank: it sees whole
// documents. Where there are fewer heads of keys than ranks, several ranks have the same one, and
// the gradients that they have of it are added in the order of the ranks.
//
// heads % n is 0, and kv_heads % n or n % kv_heads. All methods are collectives of the group.
// Thread-compatible.
class HeadExchange {
 public:
  explicit HeadExchange(Communicator& group) : group_(group) {}  // borrowed

  int ranks() const { return group_.world(); }
  int rank() const { return group_.rank(); }

  // Of all tokens the queries, keys and values of the rank's heads, side by side in `rows`.
  struct OwnHeads {
    at::Tensor rows;     // [T, (heads + 2 kv_heads) / n, D]
    at::Tensor q, k, v;  // views of it
  };
  // Room for them, of the heads of q [T/n, heads, D] and k [T/n, kv_heads, D].
  OwnHeads Empty(const at::Tensor& q, const at::Tensor& k) const;
  OwnHeads Gather(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) const;
  // The other way round, for gradients, which are written to q, k and v.
  void Return(const OwnHeads& own, at::Tensor q, at::Tensor k, at::Tensor v) const;

  // The same of any heads, whose numbers the ranks divide: of each [T/n, heads, D] the rank's own,
  // side by side in rows [T, sum of heads/n * D, up to a multiple of 8]; and back to where `heads`
  // are.
  at::Tensor GatherRows(const std::vector<at::Tensor>& heads) const;
  void ReturnRows(const at::Tensor& rows, const std::vector<at::Tensor>& heads) const;

  // x [T/n, heads, D] -> [T, heads/n, D], and back into `to`.
  at::Tensor ToHeads(const at::Tensor& x) const;
  void ToTokens(const at::Tensor& x, at::Tensor to) const;

 private:
  at::Tensor Exchange(const at::Tensor& parts) const;

  Communicator& group_;
};

}  // namespace sft::engine
