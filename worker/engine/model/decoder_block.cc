#include "worker/engine/model/decoder_block.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
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
using plan::Recompute;

namespace {

// Rows [first, first + count) of a micro-batch.
struct Tile {
  int64_t first = 0, count = 0;

  Tensor Of(const Tensor& rows) const {
    return rows.defined() ? rows.narrow(0, first, count) : Tensor();
  }
};

// Calls run(tile, pass) for each tile of `rows` tokens. Masks of dropout are drawn by tile.
template <typename Run>
void ForTiles(int64_t tokens, int64_t rows, const Pass& pass, const Run& run) {
  for (int64_t first = 0; first < tokens; first += rows) {
    Pass of_tile = pass;
    DropoutKey key;
    if (pass.dropout != nullptr) {
      key.seed = MixSeed(pass.dropout->seed, static_cast<uint64_t>(first));
      of_tile.dropout = &key;
    }
    run(Tile{first, std::min(rows, tokens - first)}, of_tile);
  }
}

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
  const plan::LayerShape shape = config.Layer(layer);
  if (shape.experts > 0) {
    block.experts = {.router = find(names.router, ".weight"),
                     .router_bias = find(names.router, ".bias"),
                     .correction = find(names.router_correction, ""),
                     .gate_up = ExpertLinear(unit, names.experts_gate_up),
                     .down = ExpertLinear(unit, names.experts_down),
                     .chosen = shape.chosen,
                     .options = config.router,
                     .kind = config.activation};
    if (shape.shared > 0) {
      block.mlp.gate_up = BindProjection(unit, names.shared_gate, module + 4);
      block.mlp.down = BindProjection(unit, names.shared_down, module + 6);
    }
  } else {
    block.mlp.gated = names.gate != nullptr;
    block.mlp.gate_up = BindProjection(unit, block.mlp.gated ? names.gate : names.up, module + 4);
    block.mlp.down = BindProjection(unit, names.down, module + 6);
  }
  block.attention.q_norm = find(names.q_norm, ".weight");
  block.attention.k_norm = find(names.k_norm, ".weight");
  block.attention.sinks = find(names.sinks, "");
  block.attention.heads = config.heads;
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
void DecoderBlock::AddSubLayer(Tensor& sum, const Tensor& x, const SubLayerEnds& ends,
                               const Pass& pass, NormedOutput& out,
                               const SubLayer& sub_layer) const {
  if (IsPlain(ends)) {
    sub_layer(sum, x);
    return;
  }
  if (ends.after) {
    out.rows = at::empty(x.sizes(), x.options());
    sub_layer(out.rows, Tensor());
    out.statistics = ends.after.ForwardAdd(sum, out.rows, x, pass);
    return;
  }
  sub_layer(sum, Tensor());
  const Tensor kept =
      Drops(pass) ? Dropout(sum, residual_dropout, *pass.dropout, ends.dropout_module) : sum;
  at::add_out(sum, x, kept, residual_scale);
}

Activation DecoderBlock::SubLayerGradient(Activation& dy, const Projection* last,
                                          const SubLayerEnds& ends, NormedOutput& out,
                                          const Pass& pass, UnitGradients& gradients) const {
  if (IsPlain(ends)) return std::exchange(dy, Activation(dy.rows));
  Activation d = last != nullptr ? last->EmptyGradientRows(dy.rows)
                                 : at::empty(dy.rows.sizes(), dy.rows.options());
  if (!ends.after) {
    const Tensor kept = Drops(pass)
                            ? Dropout(dy.rows, residual_dropout, *pass.dropout, ends.dropout_module)
                            : dy.rows;
    return at::mul_out(d.rows, kept, at::Scalar(residual_scale));
  }
  if (last != nullptr) d = last->AsGradient(d.rows, pass);
  ends.after.Backward(d, dy.rows, out.rows, out.statistics, Tensor(), pass, gradients);
  out = {};
  return d;
}

void DecoderBlock::RunAttention(const Tensor& x, const BlockContext& context, const Pass& pass,
                                Recompute level, Saved& saved) const {
  saved.input = x;
  Activation normed =
      Before(attention.qkv.EmptyInput(x, pass), x, attention_ends, pass, saved.input_statistics);
  saved.input_normed = normed.rows;
  SelfAttention::Saved& kept = saved.attention;
  attention.Project(std::move(normed), context.ropes[rope], pass, kept);
  if (level >= Recompute::kNorms) {
    const bool again = level >= Recompute::kLinears;
    kept.qkv_xa = again ? Tensor() : ApartFrom(saved.input_normed, kept.qkv_xa);
    saved.input_normed = Tensor();
  }
  saved.middle = at::empty(x.sizes(), x.options());
  AddSubLayer(saved.middle, x, attention_ends, pass, saved.attention_out,
              [&](Tensor& y, const Tensor& addend) {
                attention.Attend(y, addend, context.documents, pass, SharedOf(context), kept);
              });
  if (level >= Recompute::kNorms) kept.q = kept.k = kept.v = Tensor();
  if (level >= Recompute::kLinears) {
    kept = {.out = kept.out, .lse = kept.lse};
    saved.attention_out = {};
    saved.input_statistics = Tensor();
  }
  if (level >= Recompute::kAll) kept = {};
}

Activation DecoderBlock::MlpInput(const Tensor& x, const Pass& pass, bool again) const {
  if (!HasMlp()) return Tensor(at::empty(x.sizes(), x.options()));
  return again ? mlp.gate_up.EmptyInputRows(x) : mlp.gate_up.EmptyInput(x, pass);
}

void DecoderBlock::RunMlp(Tensor& y, const Pass& pass, Saved& saved) const {
  const Tensor& x = saved.middle;
  Activation normed = Before(MlpInput(x, pass), x, mlp_ends, pass, saved.middle_statistics);
  saved.middle_normed = normed.rows;
  AddSubLayer(y, x, mlp_ends, pass, saved.mlp_out, [&](Tensor& out, const Tensor& addend) {
    if (experts) experts.Forward(out, normed.rows, addend, pass, saved.experts);
    if (HasMlp()) mlp.Forward(out, std::move(normed), experts ? out : addend, pass, saved.mlp);
  });
}

void DecoderBlock::RunMlpInTiles(Tensor& y, const plan::BlockPlan& plan, const Pass& pass,
                                 Saved& saved) const {
  const int64_t tokens = y.size(0);
  const bool keeps_output = mlp_ends.after && plan.recompute == Recompute::kMlp;
  if (mlp.down.spare() > 0) saved.mlp.down_xa = at::empty({tokens, mlp.down.spare()}, y.options());
  if (keeps_output) saved.mlp_out.rows = at::empty(y.sizes(), y.options());
  std::vector<Tensor> statistics;
  ForTiles(tokens, plan.mlp_rows, pass, [&](const Tile& tile, const Pass& of_tile) {
    Saved part;
    part.middle = tile.Of(saved.middle);
    Tensor out = tile.Of(y);
    RunMlp(out, of_tile, part);
    if (experts) saved.experts_of_tiles.push_back(Experts::AlwaysKept(std::move(part.experts)));
    if (part.mlp.down_xa.defined()) tile.Of(saved.mlp.down_xa).copy_(part.mlp.down_xa);
    if (!keeps_output) return;
    tile.Of(saved.mlp_out.rows).copy_(part.mlp_out.rows);
    statistics.push_back(part.mlp_out.statistics);
  });
  if (keeps_output) saved.mlp_out.statistics = at::cat(statistics);
}

Tensor DecoderBlock::RunInput(const Tensor& x, const BlockContext& context, const Pass& pass,
                              Saved& saved) const {
  Tensor no_statistics;
  Activation rows = Before(input.gate.EmptyInput(x, pass), x, input_ends, pass, no_statistics);
  saved.before_input = rows.rows;
  Tensor sum = at::empty(x.sizes(), x.options());
  AddSubLayer(sum, x, input_ends, pass, saved.input_out, [&](Tensor& y, const Tensor& addend) {
    input.Forward(y, std::move(rows), context.links->inputs, addend, pass, saved.input_layer);
  });
  return sum;
}

Tensor DecoderBlock::RunFromMiddle(const BlockContext& context, const Pass& pass,
                                   const plan::BlockPlan& plan, Saved& saved) const {
  Tensor sum = at::empty(saved.middle.sizes(), saved.middle.options());
  if (InTiles(plan, sum.size(0))) {
    RunMlpInTiles(sum, plan, pass, saved);
  } else {
    RunMlp(sum, pass, saved);
  }
  if (input) sum = RunInput(sum, context, pass, saved);
  Scale(sum, pass);
  return sum;
}

void DecoderBlock::InputBackward(Activation& dy, const BlockContext& context, const Pass& pass,
                                 Saved& saved, UnitGradients& gradients) const {
  Tensor dx = at::empty(dy.rows.sizes(), dy.rows.options());
  input.Backward(
      SubLayerGradient(dy, &input.projection, input_ends, saved.input_out, pass, gradients),
      saved.before_input, context.links->dinputs, pass, saved.input_layer, gradients, dx);
  saved.before_input = Tensor();
  dy.rows.add_(dx);
}

Tensor DecoderBlock::Forward(const Tensor& x, const BlockContext& context, const Pass& pass,
                             const plan::BlockPlan& plan, Saved* saved) const {
  const Recompute level = saved == nullptr ? Recompute::kAll : plan.recompute;
  Saved all;
  RunAttention(x, context, pass, level, all);
  Tensor y = RunFromMiddle(context, pass, plan, all);
  if (saved == nullptr) return y;
  if (level >= Recompute::kNorms) {
    all.mlp.gate_up_xa = ApartFrom(all.middle_normed, all.mlp.gate_up_xa);
    all.mlp.down_xa = ApartFrom(all.mlp.activated, all.mlp.down_xa);
    all.middle_normed = Tensor();
    all.mlp.activated = all.experts.activated = Tensor();
  }
  if (level >= Recompute::kMlp) {
    all.mlp = {.down_xa = all.mlp.down_xa};
    all.experts = Experts::AlwaysKept(std::move(all.experts));
  }
  if (level >= Recompute::kLinears) {
    all = {.input = all.input,
           .attention = all.attention,
           .mlp = all.mlp,
           .experts = std::move(all.experts),
           .experts_of_tiles = std::move(all.experts_of_tiles)};
  }
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
  saved.middle = at::empty(x.sizes(), x.options());
  AddSubLayer(
      saved.middle, x, attention_ends, pass, saved.attention_out,
      [&](Tensor& y, const Tensor& addend) { attention.o.Forward(y, attended, pass, addend); });
  return RunFromMiddle(context, pass, {}, saved);
}

void DecoderBlock::Restore(const BlockContext& context, const Pass& pass,
                           const plan::BlockPlan& plan, Saved& saved) const {
  if (!saved.middle.defined()) {
    RunAttention(Tensor(saved.input), context, pass, Recompute::kNothing, saved);
    SelfAttention::Saved& kept = saved.attention;
    kept.qkv_xa = ApartFrom(saved.input_normed, kept.qkv_xa);
    saved.input_normed = Tensor();
    if (input) {
      RunFromMiddle(context, pass, plan, saved);
      return;
    }
  }
  if (!InTiles(plan, saved.middle.size(0))) RestoreMlp(pass, saved);
}

void DecoderBlock::RestoreMlp(const Pass& pass, Saved& saved) const {
  if (mlp_ends.after && !saved.mlp_out.rows.defined()) {
    Tensor y = at::empty(saved.middle.sizes(), saved.middle.options());
    RunMlp(y, pass, saved);
    return;
  }
  Activation normed = saved.middle_normed;
  if (!normed.rows.defined()) {
    // In FP8 only for a product that reads it again.
    normed = MlpInput(saved.middle, pass, !mlp.restores_gate_up(saved.mlp));
    normed = Before(std::move(normed), saved.middle, mlp_ends, pass, saved.middle_statistics);
    saved.middle_normed = normed.rows;
  }
  if (experts) experts.Restore(normed.rows, pass, saved.experts);
  if (HasMlp()) mlp.Restore(std::move(normed), pass, saved.mlp);
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
  const bool multiplies = !experts && scale < 0 && !input && IsPlain(mlp_ends) &&
                          (NeedsMlpInput(gradients, need_dx) || mlp.gate_up.trained(gradients));
  return multiplies ? &mlp.down : nullptr;
}

Activation DecoderBlock::MlpBackward(Activation dy, const Pass& pass, Saved& saved,
                                     UnitGradients& gradients, bool need_input,
                                     const Projection* reader) const {
  Tensor dinput;
  if (need_input) dinput = at::empty(saved.middle.sizes(), saved.middle.options());
  Activation dout = SubLayerGradient(dy, HasMlp() ? &mlp.down : nullptr, mlp_ends, saved.mlp_out,
                                     pass, gradients);
  Tensor* const dx = need_input ? &dinput : nullptr;
  Tensor of_experts;
  if (experts) {
    if (HasMlp() && need_input) of_experts = at::empty(dinput.sizes(), dinput.options());
    experts.Backward(dout.rows, saved.middle_normed, pass, saved.experts, gradients,
                     of_experts.defined() ? &of_experts : dx);
    saved.experts = {};
  }
  if (HasMlp()) mlp.Backward(std::move(dout), saved.middle_normed, pass, saved.mlp, gradients, dx);
  if (of_experts.defined()) dinput.add_(of_experts);
  saved.middle_normed = Tensor();
  if (!need_input) return {};
  return AddBeforeBackward(dy.rows, dinput, saved.middle, saved.middle_statistics, mlp_ends, pass,
                           gradients, reader);
}

Activation DecoderBlock::MlpBackwardInTiles(const Activation& dy, int64_t rows, const Pass& pass,
                                            Saved& saved, UnitGradients& gradients,
                                            bool need_input) const {
  ForTiles(dy.rows.size(0), rows, pass, [&](const Tile& tile, const Pass& of_tile) {
    Saved part;
    part.middle = tile.Of(saved.middle);
    part.mlp_out = {tile.Of(saved.mlp_out.rows), tile.Of(saved.mlp_out.statistics)};
    part.mlp.down_xa = tile.Of(saved.mlp.down_xa);
    if (experts) part.experts = std::move(saved.experts_of_tiles[tile.first / rows]);
    RestoreMlp(of_tile, part);
    const ops::Fp8Rows fp8{tile.Of(dy.fp8.values), tile.Of(dy.fp8.scale)};
    MlpBackward({tile.Of(dy.rows), fp8}, of_tile, part, gradients, need_input, nullptr);
  });
  saved.mlp_out = {};
  saved.mlp = {};
  saved.experts_of_tiles.clear();
  return need_input ? Activation(dy.rows) : Activation();
}

Activation DecoderBlock::Backward(Activation dy, const BlockContext& context, const Pass& pass,
                                  const plan::BlockPlan& plan, Saved& saved,
                                  UnitGradients& gradients, bool need_dx,
                                  const Projection* reader) const {
  Restore(context, pass, plan, saved);
  Scale(dy.rows, pass);
  if (input) InputBackward(dy, context, pass, saved, gradients);
  const bool input_side = need_dx || attention_ends.before.trained(gradients);
  const bool through_o = input_side || attention.inputs_trained(gradients);
  const bool mlp_input = NeedsMlpInput(gradients, need_dx);
  if (InTiles(plan, dy.rows.size(0))) {
    dy = MlpBackwardInTiles(dy, plan.mlp_rows, pass, saved, gradients, mlp_input);
  } else {
    dy = MlpBackward(std::move(dy), pass, saved, gradients, mlp_input,
                     through_o && IsPlain(attention_ends) ? &attention.o : nullptr);
  }
  if (!mlp_input) return {};
  saved.middle = Tensor();
  if (!through_o && !attention.o.trained(gradients) && !attention_ends.after.trained(gradients)) {
    return {};
  }
  const auto normed = [&] {
    if (saved.input_normed.defined()) return saved.input_normed;
    return Before(attention.qkv.EmptyInputRows(saved.input), saved.input, attention_ends, pass,
                  saved.input_statistics)
        .rows;
  };
  Tensor dinput;
  attention.Backward(
      SubLayerGradient(dy, &attention.o, attention_ends, saved.attention_out, pass, gradients),
      normed, context.documents, context.ropes[rope], pass, SharedOf(context), saved.attention,
      gradients, input_side ? &dinput : nullptr);
  if (!input_side) return {};
  dy = AddBeforeBackward(dy.rows, dinput, saved.input, saved.input_statistics, attention_ends, pass,
                         gradients, reader);
  return need_dx ? dy : Activation();
}

}  // namespace sft::engine
