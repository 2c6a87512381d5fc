#include "worker/engine/model/decoder_block.h"

#include <cmath>
#include <string>
#include <tuple>

#include <ATen/ops/add.h>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/model/families.h"

namespace sft::engine {

using at::Tensor;

namespace {

Linear BindLinear(const UnitInfo& unit, const char* name, uint64_t module_id) {
  const std::string module = unit.name + "." + name;
  Linear linear;
  linear.weight = unit.Find(module + ".weight");
  linear.bias = unit.Find(module + ".bias");
  linear.lora_a = unit.Find(module + ".lora_A.weight");
  linear.lora_b = unit.Find(module + ".lora_B.weight");
  linear.module = module_id;
  return linear;
}

}  // namespace

DecoderBlock DecoderBlock::Bind(const DecoderConfig& config, const UnitInfo& unit, int64_t layer) {
  const TensorNames& names = NamesOf(config);
  const auto norm = [&](const char* name) { return unit.Find(unit.name + "." + name + ".weight"); };
  constexpr uint64_t kModulesPerLayer = 8;
  uint64_t module = static_cast<uint64_t>(layer) * kModulesPerLayer;
  DecoderBlock block;
  block.attention.q = BindLinear(unit, names.q, module++);
  block.attention.k = BindLinear(unit, names.k, module++);
  block.attention.v = BindLinear(unit, names.v, module++);
  block.attention.o = BindLinear(unit, names.o, module++);
  block.mlp.gate = BindLinear(unit, names.gate, module++);
  block.mlp.up = BindLinear(unit, names.up, module++);
  block.mlp.down = BindLinear(unit, names.down, module++);
  block.attention.q_norm = norm(names.q_norm);
  block.attention.k_norm = norm(names.k_norm);
  block.attention.heads = config.heads;
  block.attention.key_heads = config.key_heads;
  block.attention.head_size = config.head_size;
  block.attention.window = config.windows[layer];
  block.attention.scale = 1.0 / std::sqrt(static_cast<double>(config.head_size));
  block.attention.epsilon = config.norm_epsilon;
  block.input_norm = norm(names.input_norm);
  block.post_norm = norm(names.post_norm);
  block.epsilon = config.norm_epsilon;
  return block;
}

Tensor DecoderBlock::Run(const Tensor& x, const BlockContext& context, const Pass& pass,
                         Saved& saved) const {
  saved.input = x;
  std::tie(saved.input_normed, saved.input_rstd) =
      ops::RmsNorm(x, pass.weights[input_norm], epsilon);
  Tensor attended = attention.Forward(saved.input_normed, context.documents, context.rope, pass,
                                      saved.attention);
  saved.middle = attended.add_(x);
  std::tie(saved.middle_normed, saved.middle_rstd) =
      ops::RmsNorm(saved.middle, pass.weights[post_norm], epsilon);
  return mlp.Forward(saved.middle_normed, pass, saved.mlp).add_(saved.middle);
}

Tensor DecoderBlock::Forward(const Tensor& x, const BlockContext& context, const Pass& pass,
                             Recompute recompute, Saved* saved) const {
  Saved all;
  Tensor y = Run(x, context, pass, all);
  if (saved == nullptr) return y;
  if (recompute == Recompute::kAll) {
    saved->input = x;
    return y;
  }
  if (recompute != Recompute::kNothing) {
    all.input_normed = Tensor();
    all.middle_normed = Tensor();
    all.mlp.activated = Tensor();
  }
  if (recompute == Recompute::kMlp) all.mlp = {.down_xa = all.mlp.down_xa};
  *saved = std::move(all);
  return y;
}

Tensor DecoderBlock::ForwardWith(const Tensor& x, const RopeTables& rope, const Pass& pass,
                                 const Attend& attend) const {
  Saved saved;
  const Tensor normed = std::get<0>(ops::RmsNorm(x, pass.weights[input_norm], epsilon));
  attention.Project(normed, rope, pass, saved.attention);
  const Tensor middle =
      attention.o.Forward(attend(saved.attention), pass, saved.attention.o_xa).add_(x);
  const Tensor middle_normed = std::get<0>(ops::RmsNorm(middle, pass.weights[post_norm], epsilon));
  return mlp.Forward(middle_normed, pass, saved.mlp).add_(middle);
}

void DecoderBlock::Restore(const BlockContext& context, const Pass& pass, Saved& saved) const {
  if (!saved.middle.defined()) {
    Run(Tensor(saved.input), context, pass, saved);
    return;
  }
  if (!saved.input_normed.defined()) {
    saved.input_normed = std::get<0>(ops::RmsNorm(saved.input, pass.weights[input_norm], epsilon));
  }
  if (!saved.middle_normed.defined()) {
    saved.middle_normed = std::get<0>(ops::RmsNorm(saved.middle, pass.weights[post_norm], epsilon));
  }
  mlp.Restore(saved.middle_normed, pass, saved.mlp);
}

Tensor DecoderBlock::AddNormBackward(Tensor dresidual, const Tensor& dnormed, const Tensor& x,
                                     const Tensor& rstd, int norm, const Pass& pass,
                                     UnitGradients& gradients) const {
  const bool trained = gradients.Wants(norm);
  auto [dx, dweight] = ops::RmsNormBackward(dnormed, x, pass.weights[norm], rstd, trained);
  if (trained) gradients.Add(norm, dweight);
  return dx.add_(dresidual);
}

Tensor DecoderBlock::Backward(Tensor dy, const BlockContext& context, const Pass& pass,
                              Saved& saved, UnitGradients& gradients, bool need_dx) const {
  Restore(context, pass, saved);
  const bool input_side = need_dx || gradients.Wants(input_norm);
  const bool attention_side =
      input_side || attention.inputs_trained(gradients) || attention.o.trained(gradients);
  const bool mlp_input = attention_side || gradients.Wants(post_norm);
  Tensor dnormed;
  mlp.Backward(dy, saved.middle_normed, pass, saved.mlp, gradients, mlp_input ? &dnormed : nullptr);
  saved.mlp = {};
  if (!mlp_input) return {};
  Tensor dmiddle = AddNormBackward(dy, dnormed, saved.middle, saved.middle_rstd, post_norm, pass,
                                   gradients);
  if (!attention_side) return {};
  dnormed = Tensor();
  attention.Backward(dmiddle, saved.input_normed, context.documents, context.rope, pass,
                     saved.attention, gradients, input_side ? &dnormed : nullptr);
  if (!input_side) return {};
  Tensor dx = AddNormBackward(dmiddle, dnormed, saved.input, saved.input_rstd, input_norm, pass,
                              gradients);
  return need_dx ? dx : Tensor();
}

}  // namespace sft::engine
