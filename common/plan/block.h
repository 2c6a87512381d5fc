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

// Memory and work of one token of a micro-batch in one block, from the shapes of the engine's
// buffers: rows lie in buffers with room for the adapters (worker/engine/nn/projection.h).
struct BlockCost {
  int64_t hidden_row = 0;  // bytes of a token's hidden state
  // Kept between forward and backward, by level.
  std::array<int64_t, kRecomputeLevels> saved{};
  // The part of it that may lie in host memory.
  std::array<int64_t, kRecomputeLevels> hostable{};
  // The peak beside what is kept: in the forward of a block ...
  std::array<int64_t, kRecomputeLevels> forward{};
  // ... and in its backward, in the feed-forward layer and in the attention (the workspace of
  // attention apart). Negative where the backward has freed more than it has added.
  std::array<int64_t, kRecomputeLevels> backward_mlp{}, backward_attention{};
  // The parts of the feed-forward layer in its forward (whose peak may be the attention's) and in
  // backward_mlp that exist for the tokens of a tile alone (BlockPlan::mlp_rows); tiled_forward is
  // the peak that is left.
  bool tiles = false;  // it may run in tiles
  int64_t tile_forward = 0, tile_backward = 0;
  std::array<int64_t, kRecomputeLevels> tiled_forward{};
  // Bytes moved by the kernels between the matrix products; recomputed ones beside `elementwise`,
  // by level.
  int64_t elementwise = 0;
  std::array<int64_t, kRecomputeLevels> elementwise_again{};
  // Elements of the weights that a token is multiplied with; recomputed ones, by level.
  int64_t weights = 0;
  std::array<int64_t, kRecomputeLevels> weights_again{};
  // Elements of all experts' stacks in a layer with experts, and of those multiplied with again,
  // by level. `weights` counts only the experts that a token goes to.
  int64_t stacks = 0;
  std::array<int64_t, kRecomputeLevels> stacks_again{};
  // Bytes read by the products of an adapter's factors; recomputed ones, by level.
  int64_t adapters = 0;
  std::array<int64_t, kRecomputeLevels> adapters_again{};
  // Elements of a block's matrices, and with room for the adapters.
  int64_t held_weights = 0;
  int64_t matrix_elements = 0;
  // Rows of all experts' matrices and of their transposes, each of which has a scale in FP8.
  int64_t stack_scales = 0;
};

// True if outputs of adapted linears have trained magnitudes.
bool UsesDora(const spec::JobSpec& job);

// The cost of every block, by layer.
std::vector<BlockCost> CostsOfBlocks(const ModelShape& shape, const spec::JobSpec& job,
                                     int64_t element_bytes);

}  // namespace sft::plan
