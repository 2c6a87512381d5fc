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
  const auto norm = [&](const char* name) { return unit.Find(unit.name + "." + name + ".weight"); };
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
  block.attention.epsilon = config.norm_epsilon;
  block.input_norm = norm(names.input_norm);
  block.post_norm = norm(names.post_norm);
  block.epsilon = config.norm_epsilon;
  block.rope = config.layer_options[layer].rope;
  block.residual_scale = config.residual_scale;
  return block;
}

Activation DecoderBlock::Norm(Activation normed, const Tensor& x, int norm, const Pass& pass,
                              Tensor& rstd) const {
  rstd = ops::RmsNorm(normed.rows, x, pass.weights[norm], epsilon, normed.fp8);
  return normed;
}

Tensor DecoderBlock::Addend(const Tensor& x) const { return residual_scale == 1.0 ? x : Tensor(); }

void DecoderBlock::AddResidual(Tensor& y, const Tensor& x) const {
  if (residual_scale != 1.0) at::add_out(y, x, y, residual_scale);
}

Activation DecoderBlock::SubLayerGradient(Activation& dy, const Projection& last) const {
  if (residual_scale == 1.0) return {dy.rows, std::move(dy.fp8)};
  Tensor rows = last.EmptyGradientRows(dy.rows);
  return at::mul_out(rows, dy.rows, at::Scalar(residual_scale));
}

Tensor DecoderBlock::Run(const Tensor& x, const BlockContext& context, const Pass& pass,
                         Saved& saved) const {
  saved.input = x;
  Activation normed =
      Norm(attention.qkv.EmptyInput(x, pass), x, input_norm, pass, saved.input_rstd);
  saved.input_normed = normed.rows;
  saved.middle = at::empty(x.sizes(), x.options());
  attention.Forward(saved.middle, std::move(normed), Addend(x), context.documents,
                    context.ropes[rope], pass, saved.attention);
  AddResidual(saved.middle, x);
  return RunMlp(pass, saved);
}

Tensor DecoderBlock::RunMlp(const Pass& pass, Saved& saved) const {
  const Tensor& x = saved.middle;
  Activation normed = Norm(mlp.gate_up.EmptyInput(x, pass), x, post_norm, pass, saved.middle_rstd);
  saved.middle_normed = normed.rows;
  Tensor y = at::empty(x.sizes(), x.options());
  mlp.Forward(y, std::move(normed), Addend(x), pass, saved.mlp);
  AddResidual(y, x);
  return y;
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
  Activation normed =
      Norm(attention.qkv.EmptyInput(x, pass), x, input_norm, pass, saved.input_rstd);
  saved.input_normed = normed.rows;
  attention.Project(std::move(normed), ropes[rope], pass, saved.attention);
  Tensor attended = attention.o.EmptyInputRows(x);
  attended.copy_(attend(attention.Inputs(saved.attention)));
  saved.middle = at::empty(x.sizes(), x.options());
  attention.o.Forward(saved.middle, attended, pass, Addend(x));
  AddResidual(saved.middle, x);
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
    normed = Norm(std::move(normed), saved.middle, post_norm, pass, saved.middle_rstd);
    saved.middle_normed = normed.rows;
  }
  mlp.Restore(std::move(normed), pass, saved.mlp);
}

Activation DecoderBlock::AddNormBackward(const Tensor& dresidual, const Tensor& dnormed,
                                         const Tensor& x, const Tensor& rstd, int norm,
                                         const Pass& pass, UnitGradients& gradients,
                                         const Projection* reader) const {
  Activation dx = dresidual;
  if (reader != nullptr) dx = reader->AsGradient(dresidual, pass);
  const bool trained = gradients.Wants(norm);
  const Tensor dweight = ops::RmsNormBackward(dx.rows, dnormed, x, pass.weights[norm], rstd,
                                              dresidual, trained, dx.fp8);
  if (trained) gradients.Add(norm, dweight);
  return dx;
}

bool DecoderBlock::NeedsMlpInput(UnitGradients& gradients, bool need_dx) const {
  return need_dx || gradients.Wants(input_norm) || attention.inputs_trained(gradients) ||
         attention.o.trained(gradients) || gradients.Wants(post_norm);
}

const Projection* DecoderBlock::GradientReader(UnitGradients& gradients, bool need_dx) const {
  const bool multiplies = residual_scale == 1.0 &&
                          (NeedsMlpInput(gradients, need_dx) || mlp.gate_up.trained(gradients));
  return multiplies ? &mlp.down : nullptr;
}

Activation DecoderBlock::Backward(Activation dy, const BlockContext& context, const Pass& pass,
                                  Saved& saved, UnitGradients& gradients, bool need_dx,
                                  const Projection* reader) const {
  Restore(context, pass, saved);
  const bool input_side = need_dx || gradients.Wants(input_norm);
  const bool through_o = input_side || attention.inputs_trained(gradients);
  const bool mlp_input = NeedsMlpInput(gradients, need_dx);
  Tensor dnormed = at::empty(saved.middle.sizes(), saved.middle.options());
  mlp.Backward(SubLayerGradient(dy, mlp.down), saved.middle_normed, pass, saved.mlp, gradients,
               mlp_input ? &dnormed : nullptr);
  saved.middle_normed = Tensor();
  if (!mlp_input) return {};
  dy = AddNormBackward(dy.rows, dnormed, saved.middle, saved.middle_rstd, post_norm, pass,
                       gradients, through_o && residual_scale == 1.0 ? &attention.o : nullptr);
  saved.middle = Tensor();
  if (!through_o && !attention.o.trained(gradients)) return {};
  if (!saved.input_normed.defined()) {
    saved.input_normed = Norm(attention.qkv.EmptyInputRows(saved.input), saved.input, input_norm,
                              pass, saved.input_rstd)
                             .rows;
  }
  attention.Backward(SubLayerGradient(dy, attention.o), saved.input_normed, context.documents,
                     context.ropes[rope], pass, saved.attention, gradients,
                     input_side ? &dnormed : nullptr);
  if (!input_side) return {};
  dy = AddNormBackward(dy.rows, dnormed, saved.input, saved.input_rstd, input_norm, pass, gradients,
                       reader);
  return need_dx ? dy : Activation();
}

}  // namespace sft::engine
