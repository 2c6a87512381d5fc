#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/plan/execution.h"
#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

// Matrices of blocks that are cut over several GPUs: tensor_parallel_size of them, n below. A rank
// has an n-th of the outputs of the linears that read the residual stream (queries, keys, values,
// gate, up), and an n-th of the inputs of those that write it (output, down). Between the two each
// rank has an n-th of the tokens (worker/engine/nn/token_exchange.h). Embedding, norms and head are
// whole on every rank, and see its tokens alone.

namespace sft::plan {

// The model as one of the ranks has it: an n-th of the heads, with the heads of keys that these
// attend to, and an n-th of the feed-forward layer. TensorsOf gives the shapes that the rank holds;
// a tensor whose shape is that of the whole model is whole on the rank. The shape itself where n
// is 1. Only of what CheckTensor has nothing against.
ModelShape ShapeOfTensorRank(const ModelShape& shape, const spec::JobSpec& job);

// Elements of each token of a micro-batch that pass between the ranks in a layer, all of them
// counted: a ring moves (n - 1) / n of them. 0 where n is 1.
struct TensorExchange {
  int64_t forward = 0, backward = 0;
  std::array<int64_t, kRecomputeLevels> again{};  // what a level of recomputation repeats
};
TensorExchange TensorExchangeOf(const ModelShape& shape, int64_t layer, const spec::JobSpec& job);

// A problem where heads or feed-forward layer cannot be divided, or the model has parts that are
// not cut yet; the message says what would do. `shape`: of the whole model.
std::optional<spec::Problem> CheckTensor(const ModelShape& shape, const spec::JobSpec& job);

}  // namespace sft::plan
