#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/row_objective.h"

namespace sft::engine {

// A micro-batch on the device: T tokens of documents laid end to end, N of which predict a target.
struct DeviceBatch {
  at::Tensor tokens;             // int64 [T]
  at::Tensor positions;          // int64 [T], from 0 in each document
  at::Tensor cu_seqlens;         // int32 [documents + 1]
  std::vector<int64_t> lengths;  // of the documents, on the host
  int64_t longest_row = 0;       // MicroBatch's
  at::Tensor loss_rows;          // int64 [N], ascending
  at::Tensor targets;            // int64 [N]
  RowObjective objective;        // empty: the sum of the cross entropies

  int64_t size() const { return tokens.size(0); }
  ops::Documents documents() const { return {cu_seqlens, lengths}; }
};

}  // namespace sft::engine
