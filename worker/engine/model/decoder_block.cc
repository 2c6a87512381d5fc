#include "worker/engine/model/decoder_block.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>

#include <string>
#include <utility>

#include "common/plan/tensors.h"
#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

namespace {

// The projection of the matrix that the linear layer `name` stands in.
Projection BindProjection(const UnitInfo& unit, const char* name, uint64_t first_module) {
  const int weight = unit.Find(unit.name + "." + name + ".weight");
  for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
    if (unit.shared_matrices[i].front() == weight) return Projection(unit, i, first_module);
  }
  throw InternalError(unit.name + " has no matrix that starts with " + name);
}

}  // namespace

DecoderBlock DecoderBlock::Bind(const ModelConfig& config, const UnitInfo& unit, int64_t layer) {
  const plan::TensorNames& names = plan::NamesOf(config);
  const auto norm = [&](const char* name) {
    return name == nullptr ? -1 : unit.Find(unit.name + "." + name + ".weight");
  };
  constexpr uint64_t kModulesPerLayer = 8;
  const uint64_t module = static_cast<uint64_t>(layer) * kModulesPerLayer;
  DecoderBlock block;
  block.attention.qkv = BindProjection(unit, names.q, module);
  block.attention.o = BindProjection(unit, names.o, module + 3);
  block.mlp.gate_up = BindProjection(unit, names.gate, module + 4);
  block.mlp.down = BindProjection(unit, names.down, module + 6);
  block.attention.q_norm = norm(names.q_norm);
  block.attention.k_norm = norm(names.k_norm);
  block.attention.heads = config.heads;
  block.attention.kv_heads = config.kv_heads;
  block.attention.head_dim = config.head_dim;
  block.attention.window = config.layer_options[layer].window;
  block.attention.scale = config.attention_scale;
  block.attention.qk_norm = config.qk_norm;
  block.norm = {config.norm_epsilon, config.norm};
  block.attention.norm = block.norm;
  block.mlp.kind = config.gate;
  block.attention_norms = {norm(names.attention_norm), norm(names.attention_out_norm)};
  block.mlp_norms = {norm(names.mlp_norm), norm(names.mlp_out_norm)};
  block.rope = config.layer_options[layer].rope;
  block.residual_scale = config.residual_scale;
  return block;
}

Activation DecoderBlock::Before(Activation input, const Tensor& x, const SubLayerNorms& norms,
                                const Pass& pass, Tensor& rstd) const {
  if (norms.before >= 0) {
    rstd = ops::RmsNorm(input.rows, x, pass.weights[norms.before], norm, input.fp8);
    return input;
  }
  input.rows.copy_(x);  // rows with columns to spare
  return input.rows;
}

template <typename SubLayer>
Tensor DecoderBlock::AddSubLayer(const Tensor& x, const SubLayerNorms& norms, const Pass& pass,
                                 NormedOutput& out, const SubLayer& sub_layer) const {
  Tensor y = at::empty(x.sizes(), x.options());
  sub_layer(y, IsPlain(norms) ? x : Tensor());
  if (IsPlain(norms)) return y;
  if (norms.after < 0) return at::add_out(y, x, y, residual_scale);
  Tensor sum = at::empty(x.sizes(), x.options());
  out.rstd = ops::RmsNormAdd(sum, y, pass.weights[norms.after], x, norm);
  out.rows = std::move(y);
  return sum;
}

Activation DecoderBlock::SubLayerGradient(Activation& dy, const Projection& last,
                                          const SubLayerNorms& norms, NormedOutput& out,
                                          const Pass& pass, UnitGradients& gradients) const {
  if (IsPlain(norms)) return {dy.rows, std::move(dy.fp8)};
  Activation d = last.EmptyGradientRows(dy.rows);
  if (norms.after < 0) return at::mul_out(d.rows, dy.rows, at::Scalar(residual_scale));
  d = last.AsGradient(d.rows, pass);
  const bool trained = gradients.Wants(norms.after);
  const Tensor dweight = ops::RmsNormBackward(d.rows, dy.rows, out.rows, pass.weights[norms.after],
                                              out.rstd, norm.kind, Tensor(), trained, d.fp8);
  if (trained) gradients.Add(norms.after, dweight);
  out = {};
  return d;
}

Tensor DecoderBlock::Run(const Tensor& x, const BlockContext& context, const Pass& pass,
                         Saved& saved) const {
  saved.input = x;
  Activation input =
      Before(attention.qkv.EmptyInput(x, pass), x, attention_norms, pass, saved.input_rstd);
  saved.input_normed = input.rows;
  saved.middle = AddSubLayer(x, attention_norms, pass, saved.attention_out,
                             [&](Tensor& y, const Tensor& addend) {
                               attention.Forward(y, std::move(input), addend, context.documents,
                                                 context.ropes[rope], pass, saved.attention);
                             });
  return RunMlp(pass, saved);
}

Tensor DecoderBlock::RunMlp(const Pass& pass, Saved& saved) const {
  const Tensor& x = saved.middle;
  Activation input = Before(mlp.gate_up.EmptyInput(x, pass), x, mlp_norms, pass, saved.middle_rstd);
  saved.middle_normed = input.rows;
  return AddSubLayer(x, mlp_norms, pass, saved.mlp_out, [&](Tensor& y, const Tensor& addend) {
    mlp.Forward(y, std::move(input), addend, pass, saved.mlp);
  });
}

Tensor DecoderBlock::Forward(const Tensor& x, const BlockContext& context, const Pass& pass,
                             plan::Recompute recompute, Saved* saved) const {
  Saved all;
  Tensor y = Run(x, context, pass, all);
  if (saved == nullptr) return y;
  if (recompute == plan::Recompute::kAll) {
    saved->input = x;
    return y;
  }
  if (recompute != plan::Recompute::kNothing) {
    all.attention.qkv_xa = ApartFrom(all.input_normed, all.attention.qkv_xa);
    all.mlp.gate_up_xa = ApartFrom(all.middle_normed, all.mlp.gate_up_xa);
    all.mlp.down_xa = ApartFrom(all.mlp.activated, all.mlp.down_xa);
    all.input_normed = Tensor();
    all.middle_normed = Tensor();
    all.attention.q = all.attention.k = Tensor();
    all.mlp.activated = Tensor();
  }
  if (recompute == plan::Recompute::kMlp) all.mlp = {.down_xa = all.mlp.down_xa};
  *saved = std::move(all);
  return y;
}

Tensor DecoderBlock::ForwardWith(const Tensor& x, const std::vector<RopeTables>& ropes,
                                 const Pass& pass, const Attend& attend) const {
  Saved saved;
  Activation input =
      Before(attention.qkv.EmptyInput(x, pass), x, attention_norms, pass, saved.input_rstd);
  attention.Project(std::move(input), ropes[rope], pass, saved.attention);
  Tensor attended = attention.o.EmptyInputRows(x);
  attended.copy_(attend(attention.Inputs(saved.attention)));
  saved.middle = AddSubLayer(
      x, attention_norms, pass, saved.attention_out,
      [&](Tensor& y, const Tensor& addend) { attention.o.Forward(y, attended, pass, addend); });
  return RunMlp(pass, saved);
}

void DecoderBlock::Restore(const BlockContext& context, const Pass& pass, Saved& saved) const {
  if (!saved.middle.defined()) {
    Run(Tensor(saved.input), context, pass, saved);
    return;
  }
  Activation normed = saved.middle_normed;
  if (!normed.rows.defined()) {
    // In FP8 only for a product that reads it again.
    normed = mlp.restores_gate_up(saved.mlp) ? mlp.gate_up.EmptyInput(saved.middle, pass)
                                             : mlp.gate_up.EmptyInputRows(saved.middle);
    normed = Before(std::move(normed), saved.middle, mlp_norms, pass, saved.middle_rstd);
    saved.middle_normed = normed.rows;
  }
  mlp.Restore(std::move(normed), pass, saved.mlp);
}

Activation DecoderBlock::AddBeforeBackward(const Tensor& dresidual, const Tensor& dinput,
                                           const Tensor& x, const Tensor& rstd,
                                           const SubLayerNorms& norms, const Pass& pass,
                                           UnitGradients& gradients,
                                           const Projection* reader) const {
  if (norms.before < 0) {
    Tensor sum = dresidual;
    return sum.add_(dinput);
  }
  Activation dx = dresidual;
  if (reader != nullptr) dx = reader->AsGradient(dresidual, pass);
  const bool trained = gradients.Wants(norms.before);
  const Tensor dweight = ops::RmsNormBackward(dx.rows, dinput, x, pass.weights[norms.before], rstd,
                                              norm.kind, dresidual, trained, dx.fp8);
  if (trained) gradients.Add(norms.before, dweight);
  return dx;
}

bool DecoderBlock::NeedsMlpInput(UnitGradients& gradients, bool need_dx) const {
  return need_dx || gradients.Wants(attention_norms.before) ||
         attention.inputs_trained(gradients) || attention.o.trained(gradients) ||
         gradients.Wants(attention_norms.after) || gradients.Wants(mlp_norms.before);
}

const Projection* DecoderBlock::GradientReader(UnitGradients& gradients, bool need_dx) const {
  const bool multiplies =
      IsPlain(mlp_norms) && (NeedsMlpInput(gradients, need_dx) || mlp.gate_up.trained(gradients));
  return multiplies ? &mlp.down : nullptr;
}

Activation DecoderBlock::Backward(Activation dy, const BlockContext& context, const Pass& pass,
                                  Saved& saved, UnitGradients& gradients, bool need_dx,
                                  const Projection* reader) const {
  Restore(context, pass, saved);
  const bool input_side = need_dx || gradients.Wants(attention_norms.before);
  const bool through_o = input_side || attention.inputs_trained(gradients);
  const bool mlp_input = NeedsMlpInput(gradients, need_dx);
  Tensor dinput = at::empty(saved.middle.sizes(), saved.middle.options());
  mlp.Backward(SubLayerGradient(dy, mlp.down, mlp_norms, saved.mlp_out, pass, gradients),
               saved.middle_normed, pass, saved.mlp, gradients, mlp_input ? &dinput : nullptr);
  saved.middle_normed = Tensor();
  if (!mlp_input) return {};
  dy = AddBeforeBackward(dy.rows, dinput, saved.middle, saved.middle_rstd, mlp_norms, pass,
                         gradients, through_o && IsPlain(attention_norms) ? &attention.o : nullptr);
  saved.middle = Tensor();
  if (!through_o && !attention.o.trained(gradients) && !gradients.Wants(attention_norms.after)) {
    return {};
  }
  if (!saved.input_normed.defined()) {
    saved.input_normed = Before(attention.qkv.EmptyInputRows(saved.input), saved.input,
                                attention_norms, pass, saved.input_rstd)
                             .rows;
  }
  attention.Backward(
      SubLayerGradient(dy, attention.o, attention_norms, saved.attention_out, pass, gradients),
      saved.input_normed, context.documents, context.ropes[rope], pass, saved.attention, gradients,
      input_side ? &dinput : nullptr);
  if (!input_side) return {};
  dy = AddBeforeBackward(dy.rows, dinput, saved.input, saved.input_rstd, attention_norms, pass,
                         gradients, reader);
  return need_dx ? dy : Activation();
}

}  // namespace sft::engine
