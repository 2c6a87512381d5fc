#include "worker/engine/nn/delta_net.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sum.h>

#include <initializer_list>
#include <utility>
#include <vector>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/head_exchange.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

DeltaNet::Parts DeltaNet::Split(const Tensor& projected) const {
  const int64_t channels = 2 * keys() + values(), gates = channels + values();
  return {projected.narrow(1, 0, channels), projected.narrow(1, channels, values()),
          projected.narrow(1, gates, value_heads),
          projected.narrow(1, gates + value_heads, value_heads)};
}

DeltaNet::Heads DeltaNet::SplitHeads(const Tensor& convolved, const plan::DeltaShape& shape) {
  const auto heads = [&](int64_t first, int64_t count, int64_t size) {
    return convolved.narrow(1, first, count * size).unflatten(1, {count, size});
  };
  return {heads(0, shape.key_heads, shape.key_size),
          heads(shape.keys(), shape.key_heads, shape.key_size),
          heads(2 * shape.keys(), shape.value_heads, shape.value_size)};
}

DeltaNet::Parts DeltaNet::SplitRows(const Tensor& rows, const plan::DeltaShape& shape) {
  const int64_t channels = shape.channels(), count = shape.value_heads;
  return {.qkv = rows.narrow(1, 0, channels),
          .z = {},
          .b = rows.narrow(1, channels, count),
          .a = rows.narrow(1, channels + count, count)};
}

std::vector<Tensor> DeltaNet::Exchanged(const Parts& parts) const {
  const auto [q, k, v] = SplitHeads(parts.qkv, shape());
  return {q, k, v, parts.b.unsqueeze(2), parts.a.unsqueeze(2)};
}

std::vector<Tensor> DeltaNet::Channels(const Tensor& x, const Inputs& inputs) const {
  const int64_t of_keys = inputs.shape.keys(), of_values = inputs.shape.values();
  const int64_t key = inputs.rank * of_keys, value = inputs.rank * of_values;
  return {x.narrow(0, key, of_keys), x.narrow(0, keys() + key, of_keys),
          x.narrow(0, 2 * keys() + value, of_values)};
}

DeltaNet::Inputs DeltaNet::MakeInputs(const Parts& parts, const Pass& pass) const {
  const auto fp32 = [&](int weight) { return pass.weights[weight].to(at::kFloat); };
  Inputs inputs{.shape = shape(),
                .qkv = parts.qkv,
                .b = parts.b,
                .a = parts.a,
                .conv = pass.weights[conv].view({2 * keys() + values(), -1}),
                .a_log = fp32(a_log),
                .dt_bias = fp32(dt_bias)};
  if (pass.exchange == nullptr) return inputs;
  inputs.rank = pass.exchange->rank();
  inputs.shape.key_heads /= pass.exchange->ranks();
  inputs.shape.value_heads /= pass.exchange->ranks();
  inputs.rows = pass.exchange->GatherRows(Exchanged(parts));
  const Parts own = SplitRows(inputs.rows, inputs.shape);
  inputs.qkv = own.qkv;
  inputs.b = own.b;
  inputs.a = own.a;
  const int64_t count = inputs.shape.value_heads;
  inputs.conv = at::cat(Channels(inputs.conv, inputs), 0);
  inputs.a_log = inputs.a_log.narrow(0, inputs.rank * count, count);
  inputs.dt_bias = inputs.dt_bias.narrow(0, inputs.rank * count, count);
  return inputs;
}

DeltaNet::Gates DeltaNet::MakeGates(const Inputs& inputs, bool alone) {
  Gates gates;
  gates.rate = inputs.a_log.exp();
  gates.shifted = inputs.a.to(at::kFloat).add(inputs.dt_bias);
  const auto softplus = [](const Tensor& x) { return at::softplus(x); };
  const auto sigmoid = [](const Tensor& x) { return at::sigmoid(x); };
  gates.g = ByRow(gates.shifted, alone, softplus).mul_(gates.rate).neg_().contiguous();
  gates.beta = ByRow(inputs.b.to(at::kFloat), alone, sigmoid).contiguous();
  return gates;
}

void DeltaNet::GatesBackward(const Inputs& inputs, const Gates& gates, const Tensor& dg,
                             const Tensor& dbeta, UnitGradients& gradients, Tensor db,
                             Tensor da) const {
  const int64_t count = inputs.shape.value_heads;
  const auto add = [&](int weight, const Tensor& gradient) {
    gradients.Buffer(weight).narrow(0, inputs.rank * count, count).add_(at::sum(gradient, {0}));
  };
  if (gradients.Wants(a_log)) add(a_log, dg.mul(gates.g));
  const Tensor dshifted = at::sigmoid(gates.shifted).mul_(gates.rate).neg_().mul_(dg);
  if (gradients.Wants(dt_bias)) add(dt_bias, dshifted);
  da.copy_(dshifted);
  db.copy_(at::sigmoid_backward(dbeta, gates.beta));
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

void DeltaNet::Convolve(const Inputs& inputs, const ops::Documents& documents, Saved& saved) {
  saved.convolved = at::empty(inputs.qkv.sizes(), inputs.qkv.options());
  ops::ShortConv(saved.convolved, inputs.qkv, inputs.conv, documents);
}

void DeltaNet::ComputeHeads(const ops::Documents& documents, const Pass& pass, Saved& saved) const {
  const Inputs inputs = MakeInputs(Split(saved.projected), pass);
  if (!saved.convolved.defined()) Convolve(inputs, documents, saved);
  const auto [q, k, v] = SplitHeads(saved.convolved, inputs.shape);
  const Gates gates = MakeGates(inputs, /*alone=*/pass.tile > 0);
  saved.heads = at::empty({saved.projected.size(0), values()}, q.options());
  Tensor heads = ByHead(saved.heads);
  if (pass.exchange == nullptr) {
    ops::GatedDelta(heads, q, k, v, gates.g, gates.beta, documents);
    return;
  }
  Tensor own = at::empty(v.sizes(), v.options());
  ops::GatedDelta(own, q, k, v, gates.g, gates.beta, documents);
  pass.exchange->ToTokens(own, heads);
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
  const Inputs inputs = MakeInputs(Split(saved.projected), pass);
  saved.convolved = at::empty(inputs.qkv.sizes(), inputs.qkv.options());
  ops::ShortConvNext(saved.convolved, states.conv, inputs.qkv, inputs.conv, pieces);
  const auto [q, k, v] = SplitHeads(saved.convolved, inputs.shape);
  const Gates gates = MakeGates(inputs, /*alone=*/pass.tile > 0);
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

void DeltaNet::RuleBackward(const Tensor& dheads, const ops::Documents& documents, const Pass& pass,
                            Saved& saved, UnitGradients& gradients, Parts& dparts) const {
  const Inputs inputs = MakeInputs(Split(saved.projected), pass);
  if (!saved.convolved.defined()) Convolve(inputs, documents, saved);
  const auto [q, k, v] = SplitHeads(saved.convolved, inputs.shape);
  const Gates gates = MakeGates(inputs, /*alone=*/false);
  const bool exchanged = pass.exchange != nullptr;
  const Tensor dout = exchanged ? pass.exchange->ToHeads(ByHead(dheads)) : ByHead(dheads);
  Tensor dconvolved = at::empty_like(saved.convolved);
  auto [dq, dk, dv] = SplitHeads(dconvolved, inputs.shape);
  Tensor dg = at::empty_like(gates.g), dbeta = at::empty_like(gates.beta);
  ops::GatedDeltaBackward(dq, dk, dv, dg, dbeta, dout, q, k, v, gates.g, gates.beta, documents);

  const Tensor rows = exchanged ? at::empty_like(inputs.rows) : Tensor();
  Parts d = exchanged ? SplitRows(rows, inputs.shape) : dparts;
  GatesBackward(inputs, gates, dg, dbeta, gradients, d.b, d.a);
  const Tensor dconv = ops::ShortConvBackward(d.qkv, dconvolved, inputs.qkv, inputs.conv, documents,
                                              gradients.Wants(conv));
  if (gradients.Wants(conv)) {
    const Tensor sum = gradients.Buffer(conv).view({2 * keys() + values(), -1});
    const std::vector<Tensor> to = Channels(sum, inputs);
    const int64_t of_keys = inputs.shape.keys();
    to[0].add_(dconv.narrow(0, 0, of_keys));
    to[1].add_(dconv.narrow(0, of_keys, of_keys));
    to[2].add_(dconv.narrow(0, 2 * of_keys, inputs.shape.values()));
  }
  if (exchanged) pass.exchange->ReturnRows(rows, Exchanged(dparts));
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

  RuleBackward(dheads, documents, pass, saved, gradients, dparts);
  dheads = Tensor();
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
