#pragma once

#include <cstdint>
#include <optional>

#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

// Rows whose tokens are cut over several GPUs: context_parallel_size of them, n below. Those of a
// node, m, exchange tokens for heads (worker/engine/nn/head_exchange.h); n / m nodes gather each
// other's keys and values (worker/engine/nn/key_gather.h).

namespace sft::plan {

// Each rank's tokens are a multiple of it.
inline constexpr int64_t kShareMultiple = 8;

// What a rank has of `tokens`, padding included; all of them where n is 1.
int64_t ShareOfTokens(int64_t tokens, const spec::JobSpec& job);

// The model as a rank's attention sees it: an m-th of the heads, with the keys that these attend
// to.
ModelShape ShapeOfShare(const ModelShape& shape, const spec::JobSpec& job);

// Elements of a token that a rank exchanges in a layer's attention; 0 where m is 1.
struct ExchangedElements {
  int64_t inputs = 0;   // queries, keys and values
  int64_t outputs = 0;  // what attention makes of them

  int64_t forward() const { return inputs + outputs; }
  // The forward's once more, and the gradients of both.
  int64_t backward() const { return 2 * (inputs + outputs); }
};
ExchangedElements ExchangedOf(const ModelShape& shape, int64_t layer, const spec::JobSpec& job);

// Elements of the keys and values that a rank's attention has in a layer from all nodes, for each
// of its tokens; 0 where there are no others.
int64_t GatheredOf(const ModelShape& shape, int64_t layer, const spec::JobSpec& job);

// A problem where a node's ranks cannot divide the heads, or a state would go from token to token
// over nodes; the message says what would do.
std::optional<spec::Problem> CheckContext(const ModelShape& shape, const spec::JobSpec& job);

}  // namespace sft::plan
