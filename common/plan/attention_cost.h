#pragma once

#include <cstdint>

#include "common/plan/gpu.h"
#include "common/plan/model_config.h"

// What a block's attention costs on a GPU, by what is really launched for its heads, its window and
// the length of documents (attention_calls.h, worker/engine/cuda/cudnn_attention.h). Pure
// functions.

namespace sft::plan {

// Workspace of a layer's attention, or of its gated DeltaNet, in its backward for `documents` of
// `length` tokens, in a fixed order of summation or not; bytes.
int64_t AttentionWorkspace(const ModelShape& shape, int64_t layer, int64_t documents,
                           int64_t length, bool deterministic);

// Operations of a gated DeltaNet's rule for a token, forward; the backward has kDeltaBackward times
// as many, the states that it makes again included.
double DeltaFlops(const DeltaShape& delta);
inline constexpr double kDeltaBackward = 3.0;

// Workspace of a layer's backward by FlashAttention-2, for `queries` queries and `keys` keys;
// bytes.
int64_t FlashWorkspace(const ModelShape& shape, int64_t layer, int64_t queries, int64_t keys,
                       bool deterministic);

// The rates of a GPU whose attention in a layer is FlashAttention-2's, as where keys are gathered.
GpuRates WithFlashAttention(const ModelShape& shape, int64_t layer, GpuRates gpu);

// Predicted time of one layer in one pass over a micro-batch.
struct AttentionSeconds {
  double forward = 0, backward = 0;
};
// For `tokens` tokens in documents of `length`.
AttentionSeconds PredictAttention(const ModelShape& shape, int64_t layer, double tokens,
                                  int64_t length, bool deterministic, const GpuRates& gpu);

}  // namespace sft::plan
