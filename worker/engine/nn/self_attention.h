#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/batch.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/nn/rope.h"

namespace sft::engine {

// Grouped-query attention with rotary positions; optional biases, norm of each query and key head
// (Qwen3) and sliding window. Positions of parameters are those in the unit.
struct SelfAttention {
  Linear q, k, v, o;
  int q_norm = -1;
  int k_norm = -1;
  int64_t heads = 0;
  int64_t key_heads = 0;
  int64_t head_size = 0;
  int64_t window = 0;  // 0: a token sees all before it
  double scale = 0.0;
  double epsilon = 0.0;

  // What the backward needs. q_raw and k_raw only with head norms.
  struct Saved {
    at::Tensor q_raw, k_raw, q_rstd, k_rstd;  // [T, heads, D] before the norm, [T, heads]
    at::Tensor q, k, v;                       // rotated, [T, heads, D]
    at::Tensor out, lse;                      // [T, heads, D], [heads, T]
    at::Tensor q_xa, k_xa, v_xa, o_xa;
  };

  // Fills q, k, v (and what precedes them) from x [T, H], already normalised.
  void Project(const at::Tensor& x, const RopeTables& rope, const Pass& pass, Saved& saved) const;
  // x [T, H] -> [T, H].
  at::Tensor Forward(const at::Tensor& x, const ops::Documents& documents, const RopeTables& rope,
                     const Pass& pass, Saved& saved) const;

  // Adds the parameters' gradients. dx, the gradient of x, only where not null.
  void Backward(const at::Tensor& dy, const at::Tensor& x, const ops::Documents& documents,
                const RopeTables& rope, const Pass& pass, const Saved& saved,
                UnitGradients& gradients, at::Tensor* dx) const;

  // Whether a parameter before the output projection is trained.
  bool inputs_trained(UnitGradients& gradients) const;

 private:
  at::Tensor NormBackward(const at::Tensor& dy, const at::Tensor& raw, const at::Tensor& rstd,
                          int norm, const Pass& pass, UnitGradients& gradients) const;
};

}  // namespace sft::engine
