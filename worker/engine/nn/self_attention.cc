#include "worker/engine/nn/self_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>

#include <utility>
#include <vector>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/head_exchange.h"
#include "worker/engine/nn/key_gather.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Heads [first, first + count) of rows of heads.
Tensor HeadsOf(const Tensor& rows, int64_t first, int64_t count, int64_t size) {
  return rows.narrow(1, first * size, count * size).unflatten(1, {count, size});
}

Tensor QueriesOf(const KeyGather::Run& run, const Tensor& of_node) {
  return of_node.narrow(0, run.first, run.count);
}
Tensor KeysOf(const KeyGather::Run& run, const Tensor& of_all) {
  return of_all.narrow(0, run.first_key, run.keys);
}

}  // namespace

SelfAttention::Heads SelfAttention::Split(const Tensor& rows) const {
  if (borrows) return {HeadsOf(rows, 0, heads, head_dim), {}, {}, {}};
  if (output_gate) {
    const Tensor both = HeadsOf(rows, 0, heads, 2 * head_dim);
    return {both.narrow(2, 0, head_dim), HeadsOf(rows, 2 * heads, kv_heads, head_dim),
            HeadsOf(rows, 2 * heads + kv_heads, kv_heads, head_dim),
            both.narrow(2, head_dim, head_dim)};
  }
  const int64_t values = keys_are_values ? heads : heads + kv_heads;
  return {HeadsOf(rows, 0, heads, head_dim),
          HeadsOf(rows, heads, kv_heads, head_dim),
          HeadsOf(rows, values, kv_heads, head_dim),
          {}};
}

Tensor SelfAttention::QueriesAndKeys(const Tensor& rows) const {
  return HeadsOf(rows, 0, heads + kv_heads, head_dim);
}

void SelfAttention::Project(Activation x, const RopeTables& rope, const Pass& pass,
                            Saved& saved) const {
  saved.qkv = at::empty({qkv.OutputTokens(x.rows.size(0), pass), qkv.outputs()}, x.rows.options());
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

void SelfAttention::NormHeads(const RopeTables& rope, const Pass& pass, Saved& saved) const {
  if (RotatesWholeHeads(rope)) {
    ops::NormRope(saved.q, saved.k, saved.qkv, pass.weights[q_norm],
                  pass.weights[borrows ? q_norm : k_norm], rope.cos, rope.sin, norm);
    return;
  }
  const auto run = [&](Tensor& y, const Tensor& x, int weight) {
    Tensor rows = y.view({-1, head_dim});
    const Tensor rstd = ops::RmsNorm(rows, x.reshape({-1, head_dim}), pass.weights[weight], norm);
    ops::Rope(y, rope.cos, rope.sin, /*inverse=*/false);
    return rstd;
  };
  const Heads x = Split(saved.qkv);
  saved.q_rstd = run(saved.q, x.q, q_norm);
  if (!borrows) saved.k_rstd = run(saved.k, x.k, k_norm);
}

void SelfAttention::NormHeadsBackward(Tensor& dqkv, Heads& d, const RopeTables& rope,
                                      const Pass& pass, const Saved& saved,
                                      UnitGradients& gradients) const {
  if (RotatesWholeHeads(rope)) {
    const bool trained = gradients.Wants(q_norm) || (!borrows && gradients.Wants(k_norm));
    const auto [dq_norm, dk_norm] = ops::NormRopeBackward(
        dqkv, saved.qkv, pass.weights[q_norm], pass.weights[borrows ? q_norm : k_norm], rope.cos,
        rope.sin, heads, own_kv_heads(), norm, trained);
    if (trained) {
      gradients.Add(q_norm, dq_norm);
      gradients.Add(k_norm, dk_norm);
    }
    return;
  }
  const auto run = [&](Tensor& dy, Tensor dx, const Tensor& x, int weight, const Tensor& rstd) {
    ops::Rope(dy, rope.cos, rope.sin, /*inverse=*/true);
    Tensor rows = dy.reshape({-1, head_dim});
    const bool trained = gradients.Wants(weight);
    const Tensor dweight =
        ops::RmsNormBackward(rows, rows, x.reshape({-1, head_dim}), pass.weights[weight], rstd,
                             norm.kind, Tensor(), trained);
    dx.copy_(rows.view(dx.sizes()));
    if (trained) gradients.Add(weight, dweight);
  };
  const Heads dx = Split(dqkv), x = Split(saved.qkv);
  run(d.q, dx.q, x.q, q_norm, saved.q_rstd);
  if (!borrows) run(d.k, dx.k, x.k, k_norm, saved.k_rstd);
}

void SelfAttention::NormValues(Saved& saved) const {
  const Tensor rows = Split(saved.qkv).v.reshape({-1, head_dim});
  Tensor normed = at::empty_like(rows);
  saved.v_rstd = ops::RmsNorm(normed, rows, at::ones({head_dim}, rows.options()), norm);
  saved.v = normed.view({-1, kv_heads, head_dim});
}

void SelfAttention::NormValuesBackward(Tensor& dqkv, const Tensor& dv, const Saved& saved) const {
  const Tensor rows = Split(saved.qkv).v.reshape({-1, head_dim});
  Tensor drows = dv.view({-1, head_dim});
  ops::RmsNormBackward(drows, drows, rows, at::ones({head_dim}, rows.options()), saved.v_rstd,
                       norm.kind, Tensor(), /*need_weight_grad=*/false);
  Tensor to = Split(dqkv).v;
  if (keys_are_values) {
    to.add_(dv);
  } else {
    to.copy_(dv);
  }
}

void SelfAttention::ReturnGradients(const Heads& d, SharedHeads& shared) {
  if (!shared.dk.defined()) {
    shared.dk = d.k.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    shared.dv = d.v.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    return;
  }
  shared.dk.add_(d.k);
  shared.dv.add_(d.v);
}

void SelfAttention::TakeGradients(Heads& d, SharedHeads& shared) {
  if (shared.dk.defined()) {
    d.k.add_(shared.dk);
    d.v.add_(shared.dv);
  }
  shared = {};
}

// Rounded as transformers does: sigmoids to the type of the activations, then the product.
Tensor SelfAttention::Gated(const Tensor& out, const Tensor& gate, const Pass& pass) const {
  const Tensor rows = o.EmptyInputRows(out);
  Tensor by_head = HeadsOf(rows, 0, heads, head_dim);
  const auto sigmoid = [](const Tensor& x) { return at::sigmoid(x); };
  at::mul_out(by_head, out, ByRow(gate, pass.tile > 0, sigmoid));
  return rows;
}

void SelfAttention::RestoreGated(const Pass& pass, Saved& saved) const {
  if (!output_gate || saved.gated.defined()) return;
  saved.gated = Gated(HeadsOf(saved.out, 0, heads, head_dim), Split(saved.qkv).gate, pass);
}

void SelfAttention::GateBackward(Tensor& dout, Tensor& dgate, const Saved& saved) const {
  Tensor d = HeadsOf(dout, 0, heads, head_dim);
  const Tensor out = HeadsOf(saved.out, 0, heads, head_dim);
  const Tensor share = at::sigmoid(Split(saved.qkv).gate);
  dgate.copy_(at::sigmoid_backward(d.mul(out), share));
  d.mul_(share);
}

void SelfAttention::DropRows(Saved& saved) {
  if (saved.gated.defined()) saved.o_xa = ApartFrom(saved.gated, saved.o_xa);
  saved.q = saved.k = saved.v = saved.gated = Tensor();
}

void SelfAttention::Restore(const RopeTables& rope, const Pass& pass, Saved& saved) const {
  if (!has_norms() || saved.q.defined()) return;
  const int64_t tokens = saved.qkv.size(0);
  saved.q = at::empty({tokens, heads, head_dim}, saved.qkv.options());
  saved.k = at::empty({tokens, own_kv_heads(), head_dim}, saved.qkv.options());
  if (qk_norm == plan::QkNorm::kWhole) {
    NormWhole(rope, pass, saved);
  } else {
    NormHeads(rope, pass, saved);
  }
  ScaleQueries(saved.q, rope);
  if (value_norm && !borrows) NormValues(saved);
}

SelfAttention::Heads SelfAttention::Inputs(const Saved& saved) const {
  Heads inputs = Split(saved.qkv);
  if (has_norms()) {
    inputs.q = saved.q;
    if (!borrows) inputs.k = saved.k;
  }
  if (value_norm && !borrows) inputs.v = saved.v;
  return inputs;
}

void SelfAttention::Compute(const ops::Documents& documents, const Pass& pass, SharedHeads* shared,
                            Saved& saved) const {
  Heads inputs = Inputs(saved);
  if (borrows) {
    inputs.k = shared->k;
    inputs.v = shared->v;
  } else if (lends && !shared->k.defined()) {  // defined: this is a recomputation
    shared->k = inputs.k;
    shared->v = inputs.v;
  }
  saved.out = output_gate ? at::empty({saved.qkv.size(0), heads * head_dim}, saved.qkv.options())
                          : o.EmptyInputRows(saved.qkv);
  Tensor out = HeadsOf(saved.out, 0, heads, head_dim);
  if (pass.exchange == nullptr) {
    saved.lse = ComputeHeads(out, inputs, 0, documents, pass);
    return;
  }
  const HeadExchange::OwnHeads own = pass.exchange->Gather(inputs.q, inputs.k, inputs.v);
  Tensor of_own = at::empty(own.q.sizes(), own.q.options());
  saved.lse = ComputeHeads(of_own, {own.q, own.k, own.v, {}}, pass.exchange->rank() * own.q.size(1),
                           documents, pass);
  pass.exchange->ToTokens(of_own, out);
}

Tensor SelfAttention::ComputeHeads(Tensor& out, const Heads& inputs, int64_t first,
                                   const ops::Documents& documents, const Pass& pass) const {
  if (pass.keys == nullptr) return ComputeRun(out, inputs, first, documents, 0, pass);
  const KeyGather::Keys all = pass.keys->Gather(inputs.k, inputs.v);
  std::vector<Tensor> lse;
  for (const KeyGather::Run& run : pass.keys->runs()) {
    Tensor run_out = QueriesOf(run, out);
    const Heads of_run{QueriesOf(run, inputs.q), KeysOf(run, all.k), KeysOf(run, all.v), {}};
    lse.push_back(ComputeRun(run_out, of_run, first, run.documents(), run.number, pass));
  }
  return at::cat(lse, 1);
}

Tensor SelfAttention::ComputeRun(Tensor& out, const Heads& inputs, int64_t first,
                                 const ops::Documents& documents, int64_t number,
                                 const Pass& pass) const {
  Tensor lse = Drops(pass)
                   ? ops::DropoutAttention(out, inputs.q, inputs.k, inputs.v, documents, scale,
                                           window, DropoutOf(pass, number))
                   : ops::Attention(out, inputs.q, inputs.k, inputs.v, documents, scale, window);
  if (sinks >= 0) ops::AddSinks(out, lse, Sinks(pass).narrow(0, first, out.size(1)), documents);
  return lse;
}

void SelfAttention::ComputeHeadsBackward(Heads& d, const Tensor& dout, const Heads& inputs,
                                         const Tensor& out, int64_t first, const Tensor& lse,
                                         const ops::Documents& documents, const Pass& pass,
                                         UnitGradients& gradients) const {
  if (pass.keys == nullptr) {
    ComputeRunBackward(d, dout, inputs, out, first, lse, documents, 0, pass, gradients);
    return;
  }
  const KeyGather::Keys all = pass.keys->Gather(inputs.k, inputs.v);
  const KeyGather::Keys sum = pass.keys->Zeros(inputs.k);
  for (const KeyGather::Run& run : pass.keys->runs()) {
    const Heads of_run{QueriesOf(run, inputs.q), KeysOf(run, all.k), KeysOf(run, all.v), {}};
    Heads run_d{QueriesOf(run, d.q),
                at::empty(of_run.k.sizes(), of_run.k.options()),
                at::empty(of_run.v.sizes(), of_run.v.options()),
                {}};
    ComputeRunBackward(run_d, QueriesOf(run, dout), of_run, QueriesOf(run, out), first,
                       lse.narrow(1, run.first, run.count).contiguous(), run.documents(),
                       run.number, pass, gradients);
    KeysOf(run, sum.k).add_(run_d.k);
    KeysOf(run, sum.v).add_(run_d.v);
  }
  pass.keys->Return(sum, d.k, d.v);
}

void SelfAttention::ComputeRunBackward(Heads& d, const Tensor& dout, const Heads& inputs,
                                       const Tensor& out, int64_t first, const Tensor& lse,
                                       const ops::Documents& documents, int64_t number,
                                       const Pass& pass, UnitGradients& gradients) const {
  if (Tensor sum = gradients.Buffer(sinks); sum.defined()) {
    const int64_t count = out.size(1);
    sum.narrow(0, first, count)
        .add_(ops::SinkGradient(dout, out, lse, Sinks(pass).narrow(0, first, count), documents));
  }
  if (Drops(pass)) {
    ops::DropoutAttentionBackward(d.q, d.k, d.v, dout, inputs.q, inputs.k, inputs.v, out, lse,
                                  documents, scale, window, DropoutOf(pass, number));
  } else {
    ops::AttentionBackward(d.q, d.k, d.v, dout, inputs.q, inputs.k, inputs.v, out, lse, documents,
                           scale, window);
  }
}

void SelfAttention::ComputeBackward(Heads& d, const Tensor& dout, const Heads& inputs,
                                    const Saved& saved, const ops::Documents& documents,
                                    const Pass& pass, UnitGradients& gradients) const {
  const Tensor out = HeadsOf(saved.out, 0, heads, head_dim);
  const HeadExchange* exchange = pass.exchange;
  if (exchange == nullptr) {
    ComputeHeadsBackward(d, dout, inputs, out, 0, saved.lse, documents, pass, gradients);
    return;
  }
  const HeadExchange::OwnHeads own = exchange->Gather(inputs.q, inputs.k, inputs.v);
  const Tensor own_out = exchange->ToHeads(out), own_dout = exchange->ToHeads(dout);
  const HeadExchange::OwnHeads gradient = exchange->Empty(inputs.q, inputs.k);
  Heads own_d{gradient.q, gradient.k, gradient.v, {}};
  ComputeHeadsBackward(own_d, own_dout, {own.q, own.k, own.v, {}}, own_out,
                       exchange->rank() * own.q.size(1), saved.lse, documents, pass, gradients);
  exchange->Return(gradient, d.q, d.k, d.v);
}

void SelfAttention::Attend(Tensor& y, const Tensor& residual, const ops::Documents& documents,
                           const Pass& pass, SharedHeads* shared, Saved& saved) const {
  if (!saved.out.defined()) Compute(documents, pass, shared, saved);
  RestoreGated(pass, saved);
  saved.o_xa = o.Forward(y, Read(saved), pass, residual);
}

bool SelfAttention::inputs_trained(UnitGradients& gradients) const {
  return qkv.trained(gradients) || gradients.Wants(q_norm) || gradients.Wants(k_norm) ||
         gradients.Wants(sinks);
}

void SelfAttention::Backward(Activation dy, const std::function<Tensor()>& input,
                             const ops::Documents& documents, const RopeTables& rope,
                             const Pass& pass, SharedHeads* shared, Saved& saved,
                             UnitGradients& gradients, Tensor* dx) const {
  const bool go_on = dx != nullptr || inputs_trained(gradients);
  Tensor dout;
  if (go_on) dout = at::empty({saved.out.size(0), o.inputs()}, dy.rows.options());
  RestoreGated(pass, saved);
  o.Backward(std::move(dy), Read(saved), saved.o_xa, pass, gradients, go_on ? &dout : nullptr);
  saved.o_xa = saved.gated = Tensor();
  if (!go_on) return;
  Restore(rope, pass, saved);
  Heads inputs = Inputs(saved);
  Tensor dqkv = qkv.EmptyGradientRows(dout);
  Heads d = Split(dqkv);
  if (borrows) {
    inputs.k = shared->k;
    inputs.v = shared->v;
    d.k = at::empty_like(inputs.k);
    d.v = at::empty_like(inputs.v);
  } else if (value_norm) {
    d.v = at::empty_like(saved.v);
  }
  if (output_gate) {
    GateBackward(dout, d.gate, saved);
    d.q = at::empty_like(saved.q);  // heads that lie side by side
  }
  const Tensor dattended = HeadsOf(dout, 0, heads, head_dim);
  ComputeBackward(d, dattended, inputs, saved, documents, pass, gradients);
  dout = saved.out = saved.q = saved.k = saved.v = Tensor();
  if (borrows) ReturnGradients(d, *shared);
  if (lends) TakeGradients(d, *shared);
  ScaleQueries(d.q, rope);
  if (qk_norm == plan::QkNorm::kWhole) {
    NormWholeBackward(dqkv, rope, pass, saved, gradients);
  } else if (has_norms()) {
    NormHeadsBackward(dqkv, d, rope, pass, saved, gradients);
  } else if (rope.cos.defined()) {
    Tensor rotated = QueriesAndKeys(dqkv);
    ops::Rope(rotated, rope.cos, rope.sin, /*inverse=*/true);
  }
  if (value_norm && !borrows) NormValuesBackward(dqkv, d.v, saved);
  saved.qkv = Tensor();
  const Tensor x = input();
  if (dx != nullptr) *dx = at::empty(x.sizes(), x.options());
  qkv.Backward(dqkv, x, std::exchange(saved.qkv_xa, Tensor()), pass, gradients, dx);
}

}  // namespace sft::engine
