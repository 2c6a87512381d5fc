#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// The messages between ranks that share matrices (tensor parallelism with sequence parallelism,
// arXiv:2205.05198). Of a micro-batch of T tokens, rank r of n has the rows [r T/n, (r + 1) T/n) of
// the residual stream. A linear whose outputs are cut reads the rows of all, which are gathered
// before it; one whose inputs are cut makes a part of each row's sum, which are added and handed
// back behind it. The backward is the other way round. Rows are sent with the columns that they
// have to spare (rows.h), so that the products of an adapter's first factor go in the same message.
//
// All methods are collectives of the group. Thread-compatible.
class TokenExchange {
 public:
  explicit TokenExchange(Communicator& group) : group_(group) {}  // borrowed

  int ranks() const { return group_.world(); }
  int rank() const { return group_.rank(); }

  // [T/n, C] -> [T, C], in new memory.
  at::Tensor Gather(const at::Tensor& rows) const;
  // [T, C] -> this rank's rows of the sum over the ranks, [T/n, C], in new memory. What `rows`
  // holds afterwards is undefined.
  at::Tensor ScatterSum(const at::Tensor& rows) const;

 private:
  Communicator& group_;
};

}  // namespace sft::engine
