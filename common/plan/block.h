#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/plan/execution.h"
#include "common/plan/memory.h"
#include "common/plan/model_config.h"
#include "common/plan/parameters.h"
#include "common/spec/job_spec.h"

namespace sft::plan {

// What one token of a micro-batch costs in one block, from the shapes of the engine's buffers: rows
// lie in buffers with room for the adapters (worker/engine/nn/projection.h).
struct BlockCost {
  int64_t hidden_row = 0;  // bytes of a token's hidden state
  // Kept between forward and backward, by level.
  std::array<int64_t, kRecomputeLevels> saved{};
  // The most that is there beside what is kept: the forward of a block ...
  std::array<int64_t, kRecomputeLevels> forward{};
  // ... and its backward, of the feed-forward layer and of the attention (the workspace of
  // attention apart). Less than 0 where the backward has freed more than it has added.
  std::array<int64_t, kRecomputeLevels> backward_mlp{}, backward_attention{};
  // Bytes that kernels between the products move; computed again beside `elementwise`, by level.
  int64_t elementwise = 0;
  std::array<int64_t, kRecomputeLevels> elementwise_again{};
  // Elements of weights that a token is multiplied with; again, by level.
  int64_t weights = 0;
  std::array<int64_t, kRecomputeLevels> weights_again{};
  // Bytes that the products of an adapter's factors read; again, by level.
  int64_t adapters = 0;
  std::array<int64_t, kRecomputeLevels> adapters_again{};
  // The matrices of a block with room for the adapters, elements.
  int64_t matrix_elements = 0;
};

BlockCost CostOfBlock(const ModelShape& shape, const spec::JobSpec& job, int64_t element_bytes);

// Whether attention's backward goes over such documents in slabs of queries, on a GPU.
bool BackwardInSlabs(const ModelShape& shape, int64_t length, bool deterministic);
// Memory that attention's backward works in, for `documents` of `length` tokens, on a GPU, in a
// fixed order of summation or not (attention_calls.h).
int64_t AttentionWorkspace(const ModelShape& shape, int64_t documents, int64_t length,
                           bool deterministic);

}  // namespace sft::plan
