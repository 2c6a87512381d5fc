#include "worker/engine/model/decoder_block.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include <utility>

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

}  // namespace

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

void DecoderBlock::Mix(Tensor& y, const Tensor& residual, const BlockContext& context,
                       const Pass& pass, Saved& saved) const {
  if (delta) {
    delta.Attend(y, residual, context.documents, pass, saved.delta);
  } else {
    attention.Attend(y, residual, context.documents, pass, SharedOf(context), saved.attention);
  }
}

void DecoderBlock::DropMixerRows(Recompute level, Saved& saved) const {
  if (level < Recompute::kNorms) return;
  if (delta) {
    DeltaNet::DropRows(saved.delta);
  } else {
    SelfAttention::DropRows(saved.attention);
  }
  if (level < Recompute::kLinears) return;
  saved.attention = {.out = saved.attention.out, .lse = saved.attention.lse};
  saved.delta = {.heads = saved.delta.heads};
  saved.attention_out = {};
  saved.input_statistics = Tensor();
  if (level < Recompute::kAll) return;
  saved.attention = {};
  saved.delta = {};
}

void DecoderBlock::RunMixer(const Tensor& x, const BlockContext& context, const Pass& pass,
                            Recompute level, Saved& saved) const {
  saved.input = x;
  Activation normed =
      Before(mixer_in().EmptyInput(x, pass), x, attention_ends, pass, saved.input_statistics);
  saved.input_normed = normed.rows;
  if (delta) {
    delta.Project(std::move(normed), pass, saved.delta);
  } else {
    attention.Project(std::move(normed), context.ropes[rope], pass, saved.attention);
  }
  if (level >= Recompute::kNorms) DropInputNormed(level < Recompute::kLinears, saved);
  saved.middle = at::empty(x.sizes(), x.options());
  AddSubLayer(saved.middle, x, attention_ends, pass, saved.attention_out,
              [&](Tensor& y, const Tensor& addend) { Mix(y, addend, context, pass, saved); });
  DropMixerRows(level, saved);
}

void DecoderBlock::DropInputNormed(bool keeps_xa, Saved& saved) const {
  Tensor& xa = delta ? saved.delta.in_xa : saved.attention.qkv_xa;
  xa = keeps_xa ? ApartFrom(saved.input_normed, xa) : Tensor();
  saved.input_normed = Tensor();
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
    if (branches) {
      RunBranches(out, std::move(normed), pass, saved);
      return;
    }
    if (experts) experts.Forward(out, normed.rows, addend, pass, saved.experts);
    if (HasMlp()) mlp.Forward(out, std::move(normed), experts ? out : addend, pass, saved.mlp);
  });
}

void DecoderBlock::NormForExperts(const Pass& pass, Saved& saved) const {
  Activation rows = at::empty(saved.middle.sizes(), saved.middle.options());
  saved.experts_statistics = branches.experts_before.Forward(rows, saved.middle, pass);
  saved.experts_normed = rows.rows;
}

void DecoderBlock::RunBranches(Tensor& sum, Activation normed, const Pass& pass,
                               Saved& saved) const {
  const Tensor& x = saved.middle;
  NormForExperts(pass, saved);
  Tensor of_experts = at::empty(x.sizes(), x.options()), of_mlp = at::empty_like(of_experts);
  experts.Forward(of_experts, {saved.experts_normed, x}, Tensor(), pass, saved.experts);
  mlp.Forward(of_mlp, std::move(normed), Tensor(), pass, saved.mlp);
  Activation out = sum;
  saved.mlp_branch = {of_mlp, branches.mlp_after.Forward(out, of_mlp, pass)};
  saved.experts_branch = {of_experts,
                          branches.experts_after.ForwardAdd(sum, of_experts, sum, pass)};
}

void DecoderBlock::RunMlpInTiles(Tensor& y, const plan::BlockPlan& plan, const Pass& pass,
                                 Saved& saved) const {
  const int64_t tokens = y.size(0);
  const bool keeps_output = mlp_ends.after && plan.recompute == Recompute::kMlp;
  if (mlp.down.spare() > 0) saved.mlp.down_xa = at::empty({tokens, mlp.down.spare()}, y.options());
  const std::vector<NormedOutput*> outputs = MlpOutputs(saved);
  if (keeps_output) {
    for (NormedOutput* whole : outputs) {
      *whole = {at::empty(y.sizes(), y.options()),
                at::empty({tokens}, y.options().dtype(at::kFloat))};
    }
  }
  ForTiles(tokens, plan.mlp_rows, pass, [&](const Tile& tile, const Pass& of_tile) {
    Saved part;
    part.middle = tile.Of(saved.middle);
    Tensor out = tile.Of(y);
    RunMlp(out, of_tile, part);
    if (experts) saved.experts_of_tiles.push_back(Experts::AlwaysKept(std::move(part.experts)));
    if (part.mlp.down_xa.defined()) tile.Of(saved.mlp.down_xa).copy_(part.mlp.down_xa);
    if (!keeps_output) return;
    const std::vector<NormedOutput*> of_part = MlpOutputs(part);
    for (size_t i = 0; i < outputs.size(); ++i) {
      tile.Of(outputs[i]->rows).copy_(of_part[i]->rows);
      tile.Of(outputs[i]->statistics).copy_(of_part[i]->statistics);
    }
  });
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
  RunMixer(x, context, pass, level, all);
  Tensor y = RunFromMiddle(context, pass, plan, all);
  if (saved == nullptr) return y;
  if (level >= Recompute::kNorms) {
    all.mlp.gate_up_xa = ApartFrom(all.middle_normed, all.mlp.gate_up_xa);
    all.mlp.down_xa = ApartFrom(all.mlp.activated, all.mlp.down_xa);
    all.middle_normed = all.experts_normed = Tensor();
    all.mlp.activated = all.experts.activated = Tensor();
  }
  if (level >= Recompute::kMlp) {
    all.mlp = {.down_xa = all.mlp.down_xa};
    all.experts = Experts::AlwaysKept(std::move(all.experts));
  }
  if (level >= Recompute::kLinears) {
    all = {.input = all.input,
           .attention = all.attention,
           .delta = all.delta,
           .mlp = all.mlp,
           .experts = std::move(all.experts),
           .experts_of_tiles = std::move(all.experts_of_tiles)};
  }
  *saved = std::move(all);
  return y;
}

Tensor DecoderBlock::ForwardWith(const Tensor& x, const BlockContext& context, const Pass& pass,
                                 const Past& past) const {
  Saved saved;
  Activation normed =
      Before(mixer_in().EmptyInput(x, pass), x, attention_ends, pass, saved.input_statistics);
  Tensor attended;
  if (delta) {
    delta.Project(std::move(normed), pass, saved.delta);
  } else {
    attention.Project(std::move(normed), context.ropes[rope], pass, saved.attention);
    const SelfAttention::Heads heads = attention.Inputs(saved.attention);
    const Tensor out = past.attend(heads);
    attended = attention.output_gate
                   ? attention.Gated(out, heads.gate, pass)
                   : attention.o.EmptyInputRows(x).copy_(out.view({x.size(0), -1}));
  }
  saved.middle = at::empty(x.sizes(), x.options());
  AddSubLayer(saved.middle, x, attention_ends, pass, saved.attention_out,
              [&](Tensor& y, const Tensor& addend) {
                if (delta) {
                  delta.Continue(y, addend, past.pieces, pass, past.states, saved.delta);
                } else {
                  attention.o.Forward(y, attended, pass, addend);
                }
              });
  return RunFromMiddle(context, pass, {}, saved);
}

void DecoderBlock::Restore(const BlockContext& context, const Pass& pass,
                           const plan::BlockPlan& plan, Saved& saved) const {
  if (!saved.middle.defined()) {
    RunMixer(Tensor(saved.input), context, pass, Recompute::kNothing, saved);
    DropInputNormed(/*keeps_xa=*/true, saved);
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
  if (branches && !saved.experts_normed.defined()) NormForExperts(pass, saved);
  if (branches) {
    experts.Restore({saved.experts_normed, saved.middle}, pass, saved.experts);
  } else if (experts) {
    experts.Restore(normed.rows, pass, saved.experts);
  }
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
  return need_dx || attention_ends.before.trained(gradients) || MixerInputsTrained(gradients) ||
         mixer_out().trained(gradients) || attention_ends.after.trained(gradients) ||
         mlp_ends.before.trained(gradients) || branches.experts_before.trained(gradients);
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
  const bool read_by_down = HasMlp() && !branches;
  Activation dout = SubLayerGradient(dy, read_by_down ? &mlp.down : nullptr, mlp_ends,
                                     saved.mlp_out, pass, gradients);
  Tensor* const dx = need_input ? &dinput : nullptr;
  if (branches) {
    BranchesBackward(dout.rows, dy.rows, pass, saved, gradients, dx);
    if (!need_input) return {};
    return AddBeforeBackward(dy.rows, dinput, saved.middle, saved.middle_statistics, mlp_ends, pass,
                             gradients, reader);
  }
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

void DecoderBlock::BranchesBackward(const Tensor& dsum, Tensor& dresidual, const Pass& pass,
                                    Saved& saved, UnitGradients& gradients, Tensor* dx) const {
  const auto before_norm = [&](const Norm& norm, Activation d, NormedOutput& out) {
    norm.Backward(d, dsum, out.rows, out.statistics, Tensor(), pass, gradients);
    out = {};
    return d;
  };
  Activation dout = before_norm(branches.experts_after, at::empty(dsum.sizes(), dsum.options()),
                                saved.experts_branch);
  Tensor dnormed, dscored;
  if (dx != nullptr) dnormed = at::empty(dsum.sizes(), dsum.options());
  experts.Backward(dout.rows, {saved.experts_normed, saved.middle}, pass, saved.experts, gradients,
                   dx != nullptr ? &dnormed : nullptr, &dscored);
  saved.experts = {};
  saved.experts_normed = Tensor();
  if (dx != nullptr) {
    dresidual.add_(dscored);
    Activation sum = dresidual;
    branches.experts_before.Backward(sum, dnormed, saved.middle, saved.experts_statistics,
                                     dresidual, pass, gradients);
  }
  const Tensor rows = mlp.down.EmptyGradientRows(dsum);
  dout = before_norm(branches.mlp_after, mlp.down.AsGradient(rows, pass), saved.mlp_branch);
  mlp.Backward(std::move(dout), saved.middle_normed, pass, saved.mlp, gradients, dx);
  saved.middle_normed = Tensor();
}

Activation DecoderBlock::MlpBackwardInTiles(const Activation& dy, int64_t rows, const Pass& pass,
                                            Saved& saved, UnitGradients& gradients,
                                            bool need_input) const {
  ForTiles(dy.rows.size(0), rows, pass, [&](const Tile& tile, const Pass& of_tile) {
    Saved part;
    part.middle = tile.Of(saved.middle);
    const std::vector<NormedOutput*> whole = MlpOutputs(saved), of_part = MlpOutputs(part);
    for (size_t i = 0; i < whole.size(); ++i) {
      *of_part[i] = {tile.Of(whole[i]->rows), tile.Of(whole[i]->statistics)};
    }
    part.mlp.down_xa = tile.Of(saved.mlp.down_xa);
    if (experts) part.experts = std::move(saved.experts_of_tiles[tile.first / rows]);
    RestoreMlp(of_tile, part);
    const ops::Fp8Rows fp8{tile.Of(dy.fp8.values), tile.Of(dy.fp8.scale)};
    MlpBackward({tile.Of(dy.rows), fp8}, of_tile, part, gradients, need_input, nullptr);
  });
  for (NormedOutput* whole : MlpOutputs(saved)) *whole = {};
  saved.mlp = {};
  saved.experts_of_tiles.clear();
  return need_input ? Activation(dy.rows) : Activation();
}

void DecoderBlock::MixerBackward(Activation dout, const BlockContext& context, const Pass& pass,
                                 Saved& saved, UnitGradients& gradients, Tensor* dinput) const {
  const auto normed = [&] {
    if (saved.input_normed.defined()) return saved.input_normed;
    return Before(mixer_in().EmptyInputRows(saved.input), saved.input, attention_ends, pass,
                  saved.input_statistics)
        .rows;
  };
  if (delta) {
    delta.Backward(std::move(dout), normed, context.documents, pass, saved.delta, gradients,
                   dinput);
  } else {
    attention.Backward(std::move(dout), normed, context.documents, context.ropes[rope], pass,
                       SharedOf(context), saved.attention, gradients, dinput);
  }
}

Activation DecoderBlock::Backward(Activation dy, const BlockContext& context, const Pass& pass,
                                  const plan::BlockPlan& plan, Saved& saved,
                                  UnitGradients& gradients, bool need_dx,
                                  const Projection* reader) const {
  Restore(context, pass, plan, saved);
  Scale(dy.rows, pass);
  if (input) InputBackward(dy, context, pass, saved, gradients);
  const bool input_side = need_dx || attention_ends.before.trained(gradients);
  const bool through_o = input_side || MixerInputsTrained(gradients);
  const bool mlp_input = NeedsMlpInput(gradients, need_dx);
  if (InTiles(plan, dy.rows.size(0))) {
    dy = MlpBackwardInTiles(dy, plan.mlp_rows, pass, saved, gradients, mlp_input);
  } else {
    dy = MlpBackward(std::move(dy), pass, saved, gradients, mlp_input,
                     through_o && IsPlain(attention_ends) ? &mixer_out() : nullptr);
  }
  if (!mlp_input) return {};
  saved.middle = Tensor();
  if (!through_o && !mixer_out().trained(gradients) && !attention_ends.after.trained(gradients)) {
    return {};
  }
  Tensor dinput;
  MixerBackward(
      SubLayerGradient(dy, &mixer_out(), attention_ends, saved.attention_out, pass, gradients),
      context, pass, saved, gradients, input_side ? &dinput : nullptr);
  if (!input_side) return {};
  dy = AddBeforeBackward(dy.rows, dinput, saved.input, saved.input_statistics, attention_ends, pass,
                         gradients, reader);
  return need_dx ? dy : Activation();
}

}  // namespace sft::engine
