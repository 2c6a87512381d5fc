#include "worker/engine/nn/delta_net.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sum.h>

#include <initializer_list>
#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

DeltaNet::Parts DeltaNet::Split(const Tensor& projected) const {
  const int64_t channels = 2 * keys() + values(), gates = channels + values();
  return {projected.narrow(1, 0, channels), projected.narrow(1, channels, values()),
          projected.narrow(1, gates, value_heads),
          projected.narrow(1, gates + value_heads, value_heads)};
}

DeltaNet::Heads DeltaNet::SplitHeads(const Tensor& convolved) const {
  const auto heads = [&](int64_t first, int64_t count, int64_t size) {
    return convolved.narrow(1, first, count * size).unflatten(1, {count, size});
  };
  return {heads(0, key_heads, key_size), heads(keys(), key_heads, key_size),
          heads(2 * keys(), value_heads, value_size)};
}

DeltaNet::Gates DeltaNet::MakeGates(const Parts& parts, const Pass& pass) const {
  Gates gates;
  gates.rate = pass.weights[a_log].to(at::kFloat).exp();
  gates.shifted = parts.a.to(at::kFloat).add(pass.weights[dt_bias].to(at::kFloat));
  const bool alone = pass.tile > 0;
  const auto softplus = [](const Tensor& x) { return at::softplus(x); };
  const auto sigmoid = [](const Tensor& x) { return at::sigmoid(x); };
  gates.g = ByRow(gates.shifted, alone, softplus).mul_(gates.rate).neg_().contiguous();
  gates.beta = ByRow(parts.b.to(at::kFloat), alone, sigmoid).contiguous();
  return gates;
}

void DeltaNet::GatesBackward(const Gates& gates, const Tensor& dg, const Tensor& dbeta,
                             UnitGradients& gradients, Parts& dparts) const {
  if (gradients.Wants(a_log)) gradients.Add(a_log, at::sum(dg.mul(gates.g), {0}));
  const Tensor dshifted = at::sigmoid(gates.shifted).mul_(gates.rate).neg_().mul_(dg);
  if (gradients.Wants(dt_bias)) gradients.Add(dt_bias, at::sum(dshifted, {0}));
  dparts.a.copy_(dshifted);
  dparts.b.copy_(at::sigmoid_backward(dbeta, gates.beta));
}

void DeltaNet::Project(Activation x, const Pass& pass, Saved& saved) const {
  saved.projected = at::empty({x.rows.size(0), in.outputs()}, x.rows.options());
  if (!by_key_head) {
    saved.in_xa = in.Forward(saved.projected, std::move(x), pass);
    return;
  }
  Tensor rows = at::empty(saved.projected.sizes(), saved.projected.options());
  saved.in_xa = in.Forward(rows, std::move(x), pass);
  CopyByKeyHead(saved.projected, rows, /*to_rows=*/false);
}

void DeltaNet::CopyByKeyHead(Tensor& projected, Tensor& rows, bool to_rows) const {
  const int64_t repeats = value_heads / key_heads, of_values = repeats * value_size;
  int64_t first = 0;  // column of `projected`
  int64_t begin = 0;  // column of `rows`, of the linear
  const auto copy_parts = [&](std::initializer_list<int64_t> sizes) {
    int64_t all = 0, within = 0;  // columns of a key head
    for (const int64_t size : sizes) all += size;
    const Tensor heads = rows.narrow(1, begin, key_heads * all).unflatten(1, {key_heads, all});
    for (const int64_t size : sizes) {
      const Tensor part =
          projected.narrow(1, first, key_heads * size).unflatten(1, {key_heads, size});
      const Tensor of_heads = heads.narrow(2, within, size);
      (to_rows ? of_heads : part).copy_(to_rows ? part : of_heads);
      first += key_heads * size;
      within += size;
    }
    begin += key_heads * all;
  };
  copy_parts({key_size, key_size, of_values, of_values});
  copy_parts({repeats, repeats});
}

void DeltaNet::Convolve(const ops::Documents& documents, const Pass& pass, Saved& saved) const {
  const Tensor qkv = Split(saved.projected).qkv;
  saved.convolved = at::empty(qkv.sizes(), qkv.options());
  ops::ShortConv(saved.convolved, qkv, ConvWeight(pass), documents);
}

void DeltaNet::ComputeHeads(const ops::Documents& documents, const Pass& pass, Saved& saved) const {
  if (!saved.convolved.defined()) Convolve(documents, pass, saved);
  const auto [q, k, v] = SplitHeads(saved.convolved);
  const Gates gates = MakeGates(Split(saved.projected), pass);
  saved.heads = at::empty({q.size(0), values()}, q.options());
  Tensor heads = ByHead(saved.heads);
  ops::GatedDelta(heads, q, k, v, gates.g, gates.beta, documents);
}

void DeltaNet::Attend(Tensor& y, const Tensor& residual, const ops::Documents& documents,
                      const Pass& pass, Saved& saved) const {
  if (!saved.heads.defined()) ComputeHeads(documents, pass, saved);
  Activation normed = out.EmptyInput(saved.heads, pass);
  saved.rstd = ops::GatedRmsNorm(normed.rows, saved.heads, Split(saved.projected).z,
                                 NormWeight(pass), epsilon, normed.fp8);
  saved.normed = normed.rows;
  saved.out_xa = out.Forward(y, std::move(normed), pass, residual);
}

void DeltaNet::Continue(Tensor& y, const Tensor& residual, const ops::Pieces& pieces,
                        const Pass& pass, States& states, Saved& saved) const {
  const Parts parts = Split(saved.projected);
  saved.convolved = at::empty(parts.qkv.sizes(), parts.qkv.options());
  ops::ShortConvNext(saved.convolved, states.conv, parts.qkv, ConvWeight(pass), pieces);
  const auto [q, k, v] = SplitHeads(saved.convolved);
  const Gates gates = MakeGates(parts, pass);
  saved.heads = at::empty({q.size(0), values()}, q.options());
  Tensor heads = ByHead(saved.heads);
  ops::GatedDeltaNext(heads, states.rule, q, k, v, gates.g, gates.beta, pieces);
  Attend(y, residual, {}, pass, saved);
}

DeltaNet::States DeltaNet::EmptyStates(int64_t count, const at::TensorOptions& like) const {
  return {at::empty({count, plan::kDeltaConvolution - 1, 2 * keys() + values()}, like),
          at::empty({count, value_heads, key_size, value_size}, like.dtype(at::kFloat))};
}

void DeltaNet::Restore(const ops::Documents& documents, const Pass& pass, Saved& saved) const {
  if (!saved.convolved.defined()) Convolve(documents, pass, saved);
  if (!saved.heads.defined()) ComputeHeads(documents, pass, saved);
  if (saved.normed.defined()) return;
  saved.normed = out.EmptyInputRows(saved.heads);
  saved.rstd = ops::GatedRmsNorm(saved.normed, saved.heads, Split(saved.projected).z,
                                 NormWeight(pass), epsilon);
}

void DeltaNet::DropRows(Saved& saved) {
  saved.out_xa = ApartFrom(saved.normed, saved.out_xa);
  saved.convolved = saved.normed = saved.rstd = Tensor();
}

bool DeltaNet::inputs_trained(UnitGradients& gradients) const {
  return in.trained(gradients) || gradients.Wants(conv) || gradients.Wants(a_log) ||
         gradients.Wants(dt_bias) || gradients.Wants(norm);
}

void DeltaNet::Backward(Activation dy, const std::function<Tensor()>& input,
                        const ops::Documents& documents, const Pass& pass, Saved& saved,
                        UnitGradients& gradients, Tensor* dx) const {
  const bool go_on = dx != nullptr || inputs_trained(gradients);
  Restore(documents, pass, saved);
  Tensor dheads;
  if (go_on) dheads = at::empty(saved.heads.sizes(), saved.heads.options());
  out.Backward(std::move(dy), saved.normed, saved.out_xa, pass, gradients,
               go_on ? &dheads : nullptr);
  saved.normed = saved.out_xa = Tensor();
  if (!go_on) return;
  const Parts parts = Split(saved.projected);
  Tensor dprojected = by_key_head ? at::empty(saved.projected.sizes(), saved.projected.options())
                                  : in.EmptyGradientRows(dheads);
  Parts dparts = Split(dprojected);
  const Tensor dnorm =
      ops::GatedRmsNormBackward(dheads, dparts.z, dheads, saved.heads, parts.z, NormWeight(pass),
                                saved.rstd, gradients.Wants(norm));
  if (gradients.Wants(norm)) gradients.Add(norm, dnorm);
  saved.heads = saved.rstd = Tensor();

  const auto [q, k, v] = SplitHeads(saved.convolved);
  const Gates gates = MakeGates(parts, pass);
  Tensor dconvolved = at::empty_like(saved.convolved);
  auto [dq, dk, dv] = SplitHeads(dconvolved);
  Tensor dg = at::empty_like(gates.g), dbeta = at::empty_like(gates.beta);
  ops::GatedDeltaBackward(dq, dk, dv, dg, dbeta, ByHead(dheads), q, k, v, gates.g, gates.beta,
                          documents);
  GatesBackward(gates, dg, dbeta, gradients, dparts);
  const Tensor dconv = ops::ShortConvBackward(dparts.qkv, dconvolved, parts.qkv, ConvWeight(pass),
                                              documents, gradients.Wants(conv));
  if (gradients.Wants(conv)) gradients.Add(conv, dconv.view(pass.weights[conv].sizes()));
  dheads = dconvolved = Tensor();
  saved = {.in_xa = std::move(saved.in_xa)};
  if (by_key_head) {
    Tensor rows = in.EmptyGradientRows(dprojected);
    CopyByKeyHead(dprojected, rows, /*to_rows=*/true);
    dprojected = rows;
    dparts = {};
  }
  const Tensor x = input();
  if (dx != nullptr) *dx = at::empty(x.sizes(), x.options());
  in.Backward(dprojected, x, std::exchange(saved.in_xa, Tensor()), pass, gradients, dx);
}

}  // namespace sft::engine
