#include "worker/engine/model/layer_inputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>

#include <cmath>
#include <numbers>
#include <string>

#include "common/plan/tensors.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr double kOfSum = 1.0 / std::numbers::sqrt2;  // keeps the size of a sum of two

}  // namespace

LayerInputs LayerInputs::Bind(const ModelConfig& config, const UnitInfo& embedding) {
  LayerInputs inputs;
  if (config.layer_input == 0) return inputs;
  const plan::TensorNames& names = plan::NamesOf(config);
  const auto find = [&](const char* name) {
    return embedding.Find(plan::PrefixedName(config.prefix, name) + ".weight");
  };
  inputs.table = find(names.layer_inputs);
  inputs.projection = find(names.layer_inputs_projection);
  inputs.norm = {.weight = find(names.layer_inputs_norm),
                 .options = {config.norm_epsilon, config.norm}};
  inputs.size = config.layer_input;
  inputs.projection_scale = 1.0 / std::sqrt(static_cast<double>(config.hidden));
  inputs.table_scale = std::sqrt(static_cast<double>(config.layer_input));
  inputs.pad_token = config.pad_token;
  return inputs;
}

Tensor LayerInputs::Project(const Tensor& embedded, const Pass& pass) const {
  const Tensor& weight = pass.weights[projection];
  Tensor projected = at::empty({embedded.size(0), weight.size(0)}, embedded.options());
  if (pass.tile > 0) {
    ops::RowProduct(projected, embedded, weight, {}, projection_scale, pass.tile);
  } else {
    ops::Gemm(projected, embedded, weight.t(), projection_scale, 0.0);
  }
  return projected.view({-1, size});
}

Tensor LayerInputs::Forward(const Tensor& tokens, const Tensor& embedded, const Pass& pass) const {
  const Tensor projected = Project(embedded, pass);
  Activation normed = at::empty_like(projected);
  norm.Forward(normed, projected, pass);
  Tensor inputs = at::index_select(pass.weights[table], 0, tokens);
  inputs.mul_(RoundedTo(table_scale, inputs.scalar_type()));
  return inputs.add_(normed.rows.view(inputs.sizes())).mul_(kOfSum);
}

void LayerInputs::Backward(Tensor dinputs, const Tensor& tokens, const Tensor& embedded,
                           const Pass& pass, UnitGradients& gradients, Tensor& dx) const {
  dinputs.mul_(kOfSum);
  const Tensor projected = Project(embedded, pass);
  Activation drows = at::empty_like(projected);
  const Tensor statistics = norm.Forward(drows, projected, pass);  // rows are overwritten
  norm.Backward(drows, dinputs.view(projected.sizes()), projected, statistics, Tensor(), pass,
                gradients);
  const Tensor dprojected = drows.rows.view(dinputs.sizes());
  if (Tensor buffer = gradients.Buffer(projection); buffer.defined()) {
    ops::Gemm(buffer, dprojected.t(), embedded, projection_scale, 1.0);
  }
  ops::Gemm(dx, dprojected, pass.weights[projection], projection_scale, 1.0);
  Tensor buffer = gradients.Buffer(table);
  if (!buffer.defined()) return;
  if (pad_token >= 0) dinputs.masked_fill_(tokens.eq(pad_token).unsqueeze(1), 0.0);
  dinputs.mul_(RoundedTo(table_scale, dinputs.scalar_type()));
  AddRows(buffer, tokens, dinputs);
}

}  // namespace sft::engine
