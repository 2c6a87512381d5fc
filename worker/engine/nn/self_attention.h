#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/batch.h"
#include "worker/engine/nn/projection.h"
#include "worker/engine/nn/rope.h"

namespace sft::engine {

// Grouped-query attention with rotary positions; optional biases, norm of each query and key head
// (Qwen3) and sliding window. Positions of parameters are those in the unit. Rows have the spare
// columns that their projection asks for (projection.h).
struct SelfAttention {
  Projection qkv, o;
  int q_norm = -1;
  int k_norm = -1;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;  // 0: a token sees all before it
  double scale = 0.0;
  double epsilon = 0.0;

  // Views of rows [T, (heads + 2 kv_heads) D] by head.
  struct Heads {
    at::Tensor q, k, v;  // [T, heads, D]
  };

  // Activations kept for the backward; Restore computes undefined q and k again.
  struct Saved {
    // [T, (heads + 2 kv_heads) D]: queries, keys, values. As projected where there are head norms;
    // else queries and keys are rotated in place.
    at::Tensor qkv;
    at::Tensor q, k;  // [T, heads, D], normed and rotated; only with head norms
    at::Tensor out;   // rows [T, heads * D]
    at::Tensor lse;
    at::Tensor qkv_xa, o_xa;
  };

  // Fills qkv, q and k from x [T, H], already normalised.
  void Project(Activation x, const RopeTables& rope, const Pass& pass, Saved& saved) const;
  // The inputs of attention: queries and keys normed and rotated, and values.
  Heads Inputs(const Saved& saved) const;
  // Writes y [T, H] = the layer of x [T, H], plus `residual` where it is defined.
  void Forward(at::Tensor& y, Activation x, const at::Tensor& residual,
               const ops::Documents& documents, const RopeTables& rope, const Pass& pass,
               Saved& saved) const;
  // Computes q and k where they are missing in `saved`.
  void Restore(const RopeTables& rope, const Pass& pass, Saved& saved) const;

  // Adds the parameters' gradients; writes that of x [T, H] only where dx is not null. Consumes
  // `saved`.
  void Backward(Activation dy, const at::Tensor& x, const ops::Documents& documents,
                const RopeTables& rope, const Pass& pass, Saved& saved, UnitGradients& gradients,
                at::Tensor* dx) const;

  // True if a parameter before the output projection is trained.
  bool inputs_trained(UnitGradients& gradients) const;

 private:
  bool has_norms() const { return q_norm >= 0; }
  Heads Split(const at::Tensor& qkv) const;
  // Queries and keys together, which lie side by side: [T, heads + kv_heads, D].
  at::Tensor QueriesAndKeys(const at::Tensor& qkv) const;
};

}  // namespace sft::engine
