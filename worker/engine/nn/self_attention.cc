#include "worker/engine/nn/self_attention.h"

#include <tuple>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

void SelfAttention::Project(const Tensor& x, const RopeTables& rope, const Pass& pass,
                            Saved& saved) const {
  const int64_t tokens = x.size(0);
  saved.q = q.Forward(x, pass, saved.q_xa).view({tokens, heads, head_size});
  saved.k = k.Forward(x, pass, saved.k_xa).view({tokens, key_heads, head_size});
  saved.v = v.Forward(x, pass, saved.v_xa).view({tokens, key_heads, head_size});
  if (q_norm >= 0) {
    saved.q_raw = saved.q;
    saved.k_raw = saved.k;
    std::tie(saved.q, saved.q_rstd) = ops::RmsNorm(saved.q_raw, pass.weights[q_norm], epsilon);
    std::tie(saved.k, saved.k_rstd) = ops::RmsNorm(saved.k_raw, pass.weights[k_norm], epsilon);
  }
  ops::Rope(saved.q, rope.cos, rope.sin, /*inverse=*/false);
  ops::Rope(saved.k, rope.cos, rope.sin, /*inverse=*/false);
}

Tensor SelfAttention::Forward(const Tensor& x, const ops::Documents& documents,
                              const RopeTables& rope, const Pass& pass, Saved& saved) const {
  Project(x, rope, pass, saved);
  std::tie(saved.out, saved.lse) =
      ops::Attention(saved.q, saved.k, saved.v, documents, scale, window);
  return o.Forward(saved.out.view({x.size(0), heads * head_size}), pass, saved.o_xa);
}

bool SelfAttention::inputs_trained(UnitGradients& gradients) const {
  return q.trained(gradients) || k.trained(gradients) || v.trained(gradients) ||
         gradients.Wants(q_norm) || gradients.Wants(k_norm);
}

Tensor SelfAttention::NormBackward(const Tensor& dy, const Tensor& raw, const Tensor& rstd,
                                   int norm, const Pass& pass, UnitGradients& gradients) const {
  if (norm < 0) return dy;
  const bool trained = gradients.Wants(norm);
  auto [dx, dweight] = ops::RmsNormBackward(dy, raw, pass.weights[norm], rstd, trained);
  if (trained) gradients.Add(norm, dweight);
  return dx;
}

void SelfAttention::Backward(const Tensor& dy, const Tensor& x, const ops::Documents& documents,
                             const RopeTables& rope, const Pass& pass, const Saved& saved,
                             UnitGradients& gradients, Tensor* dx) const {
  const int64_t tokens = x.size(0);
  const Tensor out = saved.out.view({tokens, heads * head_size});
  const bool go_on = dx != nullptr || inputs_trained(gradients);
  Tensor dout;
  o.Backward(dy, out, saved.o_xa, pass, gradients, go_on ? &dout : nullptr);
  if (!go_on) return;
  auto [dq, dk, dv] =
      ops::AttentionBackward(dout.view(saved.out.sizes()), saved.q, saved.k, saved.v, saved.out,
                             saved.lse, documents, scale, window);
  ops::Rope(dq, rope.cos, rope.sin, /*inverse=*/true);
  ops::Rope(dk, rope.cos, rope.sin, /*inverse=*/true);
  dq = NormBackward(dq, saved.q_raw, saved.q_rstd, q_norm, pass, gradients);
  dk = NormBackward(dk, saved.k_raw, saved.k_rstd, k_norm, pass, gradients);
  q.Backward(dq.view({tokens, heads * head_size}), x, saved.q_xa, pass, gradients, dx);
  k.Backward(dk.view({tokens, key_heads * head_size}), x, saved.k_xa, pass, gradients, dx);
  v.Backward(dv.view({tokens, key_heads * head_size}), x, saved.v_xa, pass, gradients, dx);
}

}  // namespace sft::engine
