#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/row_objective.h"

namespace sft::engine {

class HeadExchange;
class KeyGather;
class TokenExchange;

// A micro-batch on the device: T tokens of documents laid end to end, N of which predict a target.
// Where its tokens are cut over ranks, they are a rank's share, and the documents all of them.
struct DeviceBatch {
  at::Tensor tokens;                       // int64 [T]
  at::Tensor positions;                    // int64 [T], from 0 in each document
  at::Tensor cu_seqlens;                   // int32 [documents + 1]
  std::vector<int64_t> lengths;            // of the documents, on the host
  int64_t longest_row = 0;                 // MicroBatch's
  at::Tensor loss_rows;                    // int64 [N], ascending
  at::Tensor targets;                      // int64 [N]
  RowObjective objective;                  // empty: the sum of the cross entropies
  const HeadExchange* exchange = nullptr;  // of the node's ranks with other tokens; null: none
  std::shared_ptr<const KeyGather> keys;   // of the nodes that have other tokens; null: none
  at::Tensor numbers;                      // int64 [T] of all tokens; undefined: 0, 1, ...
  // Of the ranks that share matrices, and the positions of all their tokens, int64, which each
  // rank's attention sees; null and undefined: there are no others.
  const TokenExchange* sharers = nullptr;
  at::Tensor all_positions;

  int64_t size() const { return tokens.size(0); }
  ops::Documents documents() const { return {cu_seqlens, lengths}; }
};

}  // namespace sft::engine
