#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sft::engine {

// Identifies the random numbers of one micro-batch. A mask is a function of (micro-batch, module)
// alone, so a recomputed forward and the backward draw the same one again.
struct DropoutKey {
  uint64_t seed = 0;

  // The key of the micro-batch that `rank` runs as number `micro` of step `step`.
  static DropoutKey Of(uint64_t job_seed, int64_t step, int micro, int rank);
};

// x * mask / (1 - p), where each element of the mask is 0 with probability p. `module` identifies
// the place in the model. Returns x itself when p is 0.
at::Tensor Dropout(const at::Tensor& x, double p, const DropoutKey& key, uint64_t module);

// Adds noise to `rows`, uniform in [-bound, bound) and drawn for (micro-batch, module) as Dropout's
// masks are.
void AddNoise(at::Tensor& rows, double bound, const DropoutKey& key, uint64_t module);

// Mixes words into one (SplitMix64's finaliser over a running hash).
uint64_t MixSeed(uint64_t a, uint64_t b);

}  // namespace sft::engine
