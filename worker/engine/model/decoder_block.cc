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
  const auto find = [&](const char* name, const char* suffix) {
    return name == nullptr ? -1 : unit.Find(unit.name + "." + name + suffix);
  };
  const ops::NormOptions options(config.norm_epsilon, config.norm);
  const auto norm = [&](const char* name) {
    return Norm{find(name, ".weight"), find(name, ".bias"), options};
  };
  // Masks of adapters' dropout are numbered from 0, those of what sub-layers write from kOfOutputs.
  constexpr uint64_t kModulesPerLayer = 8, kOfOutputs = uint64_t{1} << 40;
  const uint64_t module = static_cast<uint64_t>(layer) * kModulesPerLayer;
  DecoderBlock block;
  block.attention.qkv = BindProjection(unit, names.q, module);
  block.attention.o = BindProjection(unit, names.o, module + 3);
  block.mlp.gated = names.gate != nullptr;
  block.mlp.gate_up = BindProjection(unit, block.mlp.gated ? names.gate : names.up, module + 4);
  block.mlp.down = BindProjection(unit, names.down, module + 6);
  block.attention.q_norm = find(names.q_norm, ".weight");
  block.attention.k_norm = find(names.k_norm, ".weight");
  block.attention.heads = config.heads;
  const plan::LayerShape shape = config.Layer(layer);
  block.attention.kv_heads = shape.kv_heads;
  block.attention.head_dim = shape.head_dim;
  block.attention.value_norm = config.value_norm;
  block.attention.keys_are_values = shape.keys_are_values;
  block.attention.lends = config.Lends(layer);
  block.attention.borrows = shape.keys_of >= 0;
  block.keys_of = block.attention.borrows ? shape.keys_of : layer;
  block.attention.window = config.layer_options[layer].window;
  block.attention.scale = config.attention_scale;
  block.attention.qk_norm = config.qk_norm;
  block.attention.norm = options;
  block.attention.dropout = config.attention_dropout;
  block.attention.dropout_module = kOfOutputs + module;
  block.mlp.kind = config.activation;
  block.attention_ends = {norm(names.attention_norm), norm(names.attention_out_norm),
                          kOfOutputs + module + 1};
  block.mlp_ends = {norm(names.mlp_norm), norm(names.mlp_out_norm), kOfOutputs + module + 2};
  if (config.layer_input > 0) {
    constexpr uint64_t kOfInputs = uint64_t{1} << 42;
    block.input.gate = BindProjection(unit, names.input_gate, kOfInputs + module);
    block.input.projection = BindProjection(unit, names.input_projection, kOfInputs + module + 1);
    block.input.size = config.layer_input;
    block.input.first = layer * config.layer_input;
    block.input.kind = config.activation;
    block.input_ends = {{}, norm(names.input_out_norm), kOfInputs + module + 2};
  }
  block.rope = config.layer_options[layer].rope;
  block.residual_scale = config.residual_scale;
  block.residual_dropout = config.residual_dropout;
  block.scale = find(names.layer_scale, "");
  return block;
}

Activation DecoderBlock::Before(Activation input, const Tensor& x, const SubLayerEnds& ends,
                                const Pass& pass, Tensor& statistics) const {
  if (ends.before) {
    statistics = ends.before.Forward(input, x, pass);
    return input;
  }
  input.rows.copy_(x);  // rows with columns to spare
  return input.rows;
}

template <typename SubLayer>
Tensor DecoderBlock::AddSubLayer(const Tensor& x, const SubLayerEnds& ends, const Pass& pass,
                                 NormedOutput& out, const SubLayer& sub_layer) const {
  Tensor y = at::empty(x.sizes(), x.options());
  const bool plain = IsPlain(ends);
  sub_layer(y, plain ? x : Tensor());
  if (plain) return y;
  if (ends.after) {
    Tensor sum = at::empty(x.sizes(), x.options());
    out.statistics = ends.after.ForwardAdd(sum, y, x, pass);
    out.rows = std::move(y);
    return sum;
  }
  if (Drops(pass)) y = Dropout(y, residual_dropout, *pass.dropout, ends.dropout_module);
  return at::add_out(y, x, y, residual_scale);
}

Activation DecoderBlock::SubLayerGradient(Activation& dy, const Projection& last,
                                          const SubLayerEnds& ends, NormedOutput& out,
                                          const Pass& pass, UnitGradients& gradients) const {
  if (IsPlain(ends)) return std::exchange(dy, Activation(dy.rows));
  Activation d = last.EmptyGradientRows(dy.rows);
  if (!ends.after) {
    const Tensor kept = Drops(pass)
                            ? Dropout(dy.rows, residual_dropout, *pass.dropout, ends.dropout_module)
                            : dy.rows;
    return at::mul_out(d.rows, kept, at::Scalar(residual_scale));
  }
  d = last.AsGradient(d.rows, pass);
  ends.after.Backward(d, dy.rows, out.rows, out.statistics, Tensor(), pass, gradients);
  out = {};
  return d;
}

Tensor DecoderBlock::Run(const Tensor& x, const BlockContext& context, const Pass& pass,
                         Saved& saved) const {
  saved.input = x;
  Activation normed =
      Before(attention.qkv.EmptyInput(x, pass), x, attention_ends, pass, saved.input_statistics);
  saved.input_normed = normed.rows;
  saved.middle = AddSubLayer(
      x, attention_ends, pass, saved.attention_out, [&](Tensor& y, const Tensor& addend) {
        attention.Forward(y, std::move(normed), addend, context.documents, context.ropes[rope],
                          pass, SharedOf(context), saved.attention);
      });
  return RunFromMiddle(context, pass, saved);
}

Tensor DecoderBlock::RunMlp(const Pass& pass, Saved& saved) const {
  const Tensor& x = saved.middle;
  Activation normed =
      Before(mlp.gate_up.EmptyInput(x, pass), x, mlp_ends, pass, saved.middle_statistics);
  saved.middle_normed = normed.rows;
  return AddSubLayer(x, mlp_ends, pass, saved.mlp_out, [&](Tensor& y, const Tensor& addend) {
    mlp.Forward(y, std::move(normed), addend, pass, saved.mlp);
  });
}

Tensor DecoderBlock::RunInput(const Tensor& x, const BlockContext& context, const Pass& pass,
                              Saved& saved) const {
  Tensor no_statistics;
  Activation rows = Before(input.gate.EmptyInput(x, pass), x, input_ends, pass, no_statistics);
  saved.before_input = rows.rows;
  return AddSubLayer(x, input_ends, pass, saved.input_out, [&](Tensor& y, const Tensor& addend) {
    input.Forward(y, std::move(rows), context.links->inputs, addend, pass, saved.input_layer);
  });
}

Tensor DecoderBlock::RunFromMiddle(const BlockContext& context, const Pass& pass,
                                   Saved& saved) const {
  Tensor sum = RunMlp(pass, saved);
  if (input) sum = RunInput(sum, context, pass, saved);
  Scale(sum, pass);
  return sum;
}

void DecoderBlock::InputBackward(Activation& dy, const BlockContext& context, const Pass& pass,
                                 Saved& saved, UnitGradients& gradients) const {
  Tensor dx = at::empty(dy.rows.sizes(), dy.rows.options());
  input.Backward(
      SubLayerGradient(dy, input.projection, input_ends, saved.input_out, pass, gradients),
      saved.before_input, context.links->dinputs, pass, saved.input_layer, gradients, dx);
  saved.before_input = Tensor();
  dy.rows.add_(dx);
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
    all.attention.q = all.attention.k = all.attention.v = Tensor();
    all.mlp.activated = Tensor();
  }
  if (recompute == plan::Recompute::kMlp) all.mlp = {.down_xa = all.mlp.down_xa};
  *saved = std::move(all);
  return y;
}

Tensor DecoderBlock::ForwardWith(const Tensor& x, const BlockContext& context, const Pass& pass,
                                 const Attend& attend) const {
  Saved saved;
  Activation normed =
      Before(attention.qkv.EmptyInput(x, pass), x, attention_ends, pass, saved.input_statistics);
  attention.Project(std::move(normed), context.ropes[rope], pass, saved.attention);
  Tensor attended = attention.o.EmptyInputRows(x);
  attended.copy_(attend(attention.Inputs(saved.attention)));
  saved.middle = AddSubLayer(
      x, attention_ends, pass, saved.attention_out,
      [&](Tensor& y, const Tensor& addend) { attention.o.Forward(y, attended, pass, addend); });
  return RunFromMiddle(context, pass, saved);
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
    normed = Before(std::move(normed), saved.middle, mlp_ends, pass, saved.middle_statistics);
    saved.middle_normed = normed.rows;
  }
  mlp.Restore(std::move(normed), pass, saved.mlp);
}

Activation DecoderBlock::AddBeforeBackward(const Tensor& dresidual, const Tensor& dinput,
                                           const Tensor& x, const Tensor& statistics,
                                           const SubLayerEnds& ends, const Pass& pass,
                                           UnitGradients& gradients,
                                           const Projection* reader) const {
  Activation dx = dresidual;
  if (!ends.before) {
    dx.rows.add_(dinput);
    return dx;
  }
  if (reader != nullptr) dx = reader->AsGradient(dresidual, pass);
  ends.before.Backward(dx, dinput, x, statistics, dresidual, pass, gradients);
  return dx;
}

bool DecoderBlock::NeedsMlpInput(UnitGradients& gradients, bool need_dx) const {
  return need_dx || attention_ends.before.trained(gradients) ||
         attention.inputs_trained(gradients) || attention.o.trained(gradients) ||
         attention_ends.after.trained(gradients) || mlp_ends.before.trained(gradients);
}

const Projection* DecoderBlock::GradientReader(UnitGradients& gradients, bool need_dx) const {
  const bool multiplies = scale < 0 && !input && IsPlain(mlp_ends) &&
                          (NeedsMlpInput(gradients, need_dx) || mlp.gate_up.trained(gradients));
  return multiplies ? &mlp.down : nullptr;
}

Activation DecoderBlock::Backward(Activation dy, const BlockContext& context, const Pass& pass,
                                  Saved& saved, UnitGradients& gradients, bool need_dx,
                                  const Projection* reader) const {
  Restore(context, pass, saved);
  Scale(dy.rows, pass);
  if (input) InputBackward(dy, context, pass, saved, gradients);
  const bool input_side = need_dx || attention_ends.before.trained(gradients);
  const bool through_o = input_side || attention.inputs_trained(gradients);
  const bool mlp_input = NeedsMlpInput(gradients, need_dx);
  Tensor dinput = at::empty(saved.middle.sizes(), saved.middle.options());
  mlp.Backward(SubLayerGradient(dy, mlp.down, mlp_ends, saved.mlp_out, pass, gradients),
               saved.middle_normed, pass, saved.mlp, gradients, mlp_input ? &dinput : nullptr);
  saved.middle_normed = Tensor();
  if (!mlp_input) return {};
  dy = AddBeforeBackward(dy.rows, dinput, saved.middle, saved.middle_statistics, mlp_ends, pass,
                         gradients, through_o && IsPlain(attention_ends) ? &attention.o : nullptr);
  saved.middle = Tensor();
  if (!through_o && !attention.o.trained(gradients) && !attention_ends.after.trained(gradients)) {
    return {};
  }
  if (!saved.input_normed.defined()) {
    saved.input_normed = Before(attention.qkv.EmptyInputRows(saved.input), saved.input,
                                attention_ends, pass, saved.input_statistics)
                             .rows;
  }
  attention.Backward(
      SubLayerGradient(dy, attention.o, attention_ends, saved.attention_out, pass, gradients),
      saved.input_normed, context.documents, context.ropes[rope], pass, SharedOf(context),
      saved.attention, gradients, input_side ? &dinput : nullptr);
  if (!input_side) return {};
  dy = AddBeforeBackward(dy.rows, dinput, saved.input, saved.input_statistics, attention_ends, pass,
                         gradients, reader);
  return need_dx ? dy : Activation();
}

}  // namespace sft::engine
