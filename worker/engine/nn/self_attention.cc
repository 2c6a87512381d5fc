#include "worker/engine/nn/self_attention.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Heads [first, first + count) of rows of heads.
Tensor HeadsOf(const Tensor& rows, int64_t first, int64_t count, int64_t size) {
  return rows.narrow(1, first * size, count * size).unflatten(1, {count, size});
}

}  // namespace

SelfAttention::Heads SelfAttention::Split(const Tensor& rows) const {
  return {HeadsOf(rows, 0, heads, head_dim), HeadsOf(rows, heads, kv_heads, head_dim),
          HeadsOf(rows, heads + kv_heads, kv_heads, head_dim)};
}

Tensor SelfAttention::QueriesAndKeys(const Tensor& rows) const {
  return HeadsOf(rows, 0, heads + kv_heads, head_dim);
}

void SelfAttention::Project(Activation x, const RopeTables& rope, const Pass& pass,
                            Saved& saved) const {
  saved.qkv = at::empty({x.rows.size(0), qkv.outputs()}, x.rows.options());
  saved.qkv_xa = qkv.Forward(saved.qkv, std::move(x), pass);
  if (has_norms()) {
    Restore(rope, pass, saved);
    return;
  }
  if (!rope.cos.defined()) return;
  Tensor rotated = QueriesAndKeys(saved.qkv);
  ops::Rope(rotated, rope.cos, rope.sin, /*inverse=*/false);
  ScaleQueries(Split(saved.qkv).q, rope);
}

void SelfAttention::ScaleQueries(Tensor q, const RopeTables& rope) const {
  if (rope.query_scale.defined()) q.mul_(rope.query_scale.to(q.scalar_type()).view({-1, 1, 1}));
}

void SelfAttention::NormWhole(const RopeTables& rope, const Pass& pass, Saved& saved) const {
  const int64_t queries = heads * head_dim, keys = kv_heads * head_dim;
  Tensor q = saved.q.flatten(1), k = saved.k.flatten(1);
  saved.q_rstd = ops::RmsNorm(q, saved.qkv.narrow(1, 0, queries), pass.weights[q_norm], norm);
  saved.k_rstd = ops::RmsNorm(k, saved.qkv.narrow(1, queries, keys), pass.weights[k_norm], norm);
  ops::Rope(saved.q, rope.cos, rope.sin, /*inverse=*/false);
  ops::Rope(saved.k, rope.cos, rope.sin, /*inverse=*/false);
}

void SelfAttention::NormWholeBackward(Tensor& dqkv, const RopeTables& rope, const Pass& pass,
                                      const Saved& saved, UnitGradients& gradients) const {
  Tensor rotated = QueriesAndKeys(dqkv);
  ops::Rope(rotated, rope.cos, rope.sin, /*inverse=*/true);
  const auto backward = [&](int64_t first, int64_t width, int weight, const Tensor& rstd) {
    Tensor d = dqkv.narrow(1, first, width);
    const bool trained = gradients.Wants(weight);
    const Tensor dweight =
        ops::RmsNormBackward(d, d, saved.qkv.narrow(1, first, width), pass.weights[weight], rstd,
                             norm.kind, Tensor(), trained);
    if (trained) gradients.Add(weight, dweight);
  };
  backward(0, heads * head_dim, q_norm, saved.q_rstd);
  backward(heads * head_dim, kv_heads * head_dim, k_norm, saved.k_rstd);
}

void SelfAttention::Restore(const RopeTables& rope, const Pass& pass, Saved& saved) const {
  if (!has_norms() || saved.q.defined()) return;
  const int64_t tokens = saved.qkv.size(0);
  saved.q = at::empty({tokens, heads, head_dim}, saved.qkv.options());
  saved.k = at::empty({tokens, kv_heads, head_dim}, saved.qkv.options());
  if (qk_norm == plan::QkNorm::kWhole) {
    NormWhole(rope, pass, saved);
  } else {
    ops::NormRope(saved.q, saved.k, saved.qkv, pass.weights[q_norm], pass.weights[k_norm], rope.cos,
                  rope.sin, norm);
  }
  ScaleQueries(saved.q, rope);
}

SelfAttention::Heads SelfAttention::Inputs(const Saved& saved) const {
  Heads inputs = Split(saved.qkv);
  if (has_norms()) {
    inputs.q = saved.q;
    inputs.k = saved.k;
  }
  return inputs;
}

void SelfAttention::Forward(Tensor& y, Activation x, const Tensor& residual,
                            const ops::Documents& documents, const RopeTables& rope,
                            const Pass& pass, Saved& saved) const {
  Project(std::move(x), rope, pass, saved);
  const Heads inputs = Inputs(saved);
  saved.out = o.EmptyInputRows(saved.qkv);
  Tensor out = HeadsOf(saved.out, 0, heads, head_dim);
  saved.lse = Drops(pass)
                  ? ops::DropoutAttention(out, inputs.q, inputs.k, inputs.v, documents, scale,
                                          window, DropoutOf(pass))
                  : ops::Attention(out, inputs.q, inputs.k, inputs.v, documents, scale, window);
  saved.o_xa = o.Forward(y, saved.out, pass, residual);
}

bool SelfAttention::inputs_trained(UnitGradients& gradients) const {
  return qkv.trained(gradients) || gradients.Wants(q_norm) || gradients.Wants(k_norm);
}

void SelfAttention::Backward(Activation dy, const Tensor& x, const ops::Documents& documents,
                             const RopeTables& rope, const Pass& pass, Saved& saved,
                             UnitGradients& gradients, Tensor* dx) const {
  const bool go_on = dx != nullptr || inputs_trained(gradients);
  Tensor dout;
  if (go_on) dout = at::empty({dy.rows.size(0), o.inputs()}, dy.rows.options());
  o.Backward(std::move(dy), saved.out, saved.o_xa, pass, gradients, go_on ? &dout : nullptr);
  saved.o_xa = Tensor();
  if (!go_on) return;
  Restore(rope, pass, saved);
  const Heads inputs = Inputs(saved);
  Tensor dqkv = qkv.EmptyGradientRows(dout);
  Heads d = Split(dqkv);
  const Tensor dattended = HeadsOf(dout, 0, heads, head_dim);
  const Tensor attended = HeadsOf(saved.out, 0, heads, head_dim);
  if (Drops(pass)) {
    ops::DropoutAttentionBackward(d.q, d.k, d.v, dattended, inputs.q, inputs.k, inputs.v, attended,
                                  saved.lse, documents, scale, window, DropoutOf(pass));
  } else {
    ops::AttentionBackward(d.q, d.k, d.v, dattended, inputs.q, inputs.k, inputs.v, attended,
                           saved.lse, documents, scale, window);
  }
  dout = saved.out = saved.q = saved.k = Tensor();
  ScaleQueries(d.q, rope);
  if (qk_norm == plan::QkNorm::kWhole) {
    NormWholeBackward(dqkv, rope, pass, saved, gradients);
  } else if (has_norms()) {
    const bool trained = gradients.Wants(q_norm) || gradients.Wants(k_norm);
    const auto [dq_norm, dk_norm] =
        ops::NormRopeBackward(dqkv, saved.qkv, pass.weights[q_norm], pass.weights[k_norm], rope.cos,
                              rope.sin, heads, kv_heads, norm, trained);
    if (trained) {
      gradients.Add(q_norm, dq_norm);
      gradients.Add(k_norm, dk_norm);
    }
  } else if (rope.cos.defined()) {
    Tensor rotated = QueriesAndKeys(dqkv);
    ops::Rope(rotated, rope.cos, rope.sin, /*inverse=*/true);
  }
  saved.qkv = Tensor();
  qkv.Backward(dqkv, x, std::exchange(saved.qkv_xa, Tensor()), pass, gradients, dx);
}

}  // namespace sft::engine
