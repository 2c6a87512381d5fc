#include "worker/engine/nn/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/projection.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Rows of each expert, of the sorted experts of all routed rows.
ExpertRows RowsOf(const Tensor& sorted, int64_t experts) {
  const Tensor borders = at::arange(experts + 1, sorted.options());
  const Tensor begins = at::searchsorted(sorted, borders).to(at::kCPU);
  const int64_t* data = begins.const_data_ptr<int64_t>();
  return {std::vector<int64_t>(data, data + experts + 1)};
}

// The sum over a token's choices of their routed rows, times `weights` [T, k] where those are
// defined: fp32 [T, C], added in the order of the choices.
Tensor SumOfChoices(const Tensor& rows, const Routing& routing, const Tensor& weights) {
  Tensor sum;
  for (int64_t j = 0; j < routing.places.size(1); ++j) {
    Tensor choice = rows.index_select(0, routing.places.select(1, j)).to(at::kFloat);
    if (weights.defined()) choice.mul_(weights.narrow(1, j, 1));
    sum = sum.defined() ? sum.add_(choice) : choice;
  }
  return sum;
}

}  // namespace

Routing Experts::Route(const Tensor& x, const Pass& pass) const {
  const Tensor& table = pass.weights[router];
  const int64_t experts = table.size(0);
  Tensor scores = at::empty({x.size(0), experts}, x.options());
  AddProduct(scores, x, table, {}, 1.0, pass);
  if (router_bias >= 0) ops::AddBias(scores, pass.weights[router_bias]);
  Routing routing;
  const Tensor all = scores.to(at::kFloat);
  auto [largest, which] = at::topk(all, chosen, 1);
  routing.chosen = which;
  if (weights == plan::RouterWeights::kOfChosen) {
    routing.weights = at::softmax(largest, 1);
  } else {
    routing.probabilities = at::softmax(all, 1);
    routing.weights = routing.probabilities.gather(1, which);
  }
  auto [sorted, order] = at::sort(which.reshape({-1}), /*stable=*/true, /*dim=*/0, false);
  routing.rows = RowsOf(sorted, experts);
  routing.tokens = order.div(chosen, "floor");
  Tensor places = at::empty_like(order);
  places.index_copy_(0, order, at::arange(order.size(0), order.options()));
  routing.places = places.view({-1, chosen});
  routing.order = std::move(order);
  return routing;
}

void Experts::RestoreGateUp(const Tensor& x, const Pass& pass, Saved& saved) const {
  if (saved.gate_up.defined()) return;
  if (!saved.routing.weights.defined()) saved.routing = Route(x, pass);
  const Routing& routing = saved.routing;
  saved.gate_up = at::empty({routing.tokens.size(0), gate_up.outputs()}, x.options());
  Tensor adapter_rows;
  if (pass.adapter_rows.defined()) adapter_rows = pass.adapter_rows.index_select(0, routing.tokens);
  saved.gate_up_xa = gate_up.Forward(saved.gate_up, x.index_select(0, routing.tokens), routing.rows,
                                     pass, adapter_rows);
}

void Experts::Activate(Saved& saved) const {
  if (saved.activated.defined()) return;
  saved.activated = at::empty({saved.gate_up.size(0), down.inputs()}, saved.gate_up.options());
  ops::Glu(saved.activated, saved.gate_up, kind);
}

void Experts::Forward(Tensor& y, const Tensor& x, const Tensor& residual, const Pass& pass,
                      Saved& saved) const {
  RestoreGateUp(x, pass, saved);
  Activate(saved);
  const Routing& routing = saved.routing;
  Tensor adapter_rows;
  if (pass.adapter_rows.defined()) adapter_rows = pass.adapter_rows.index_select(0, routing.tokens);
  Tensor outputs = at::empty({saved.activated.size(0), down.outputs()}, x.options());
  saved.down_xa = down.Forward(outputs, saved.activated, routing.rows, pass, adapter_rows);
  const Tensor sum = SumOfChoices(outputs, routing, routing.weights);
  y.copy_(residual.defined() ? sum.add(residual) : sum);
}

void Experts::Restore(const Tensor& x, const Pass& pass, Saved& saved) const {
  RestoreGateUp(x, pass, saved);
  Activate(saved);
}

Tensor Experts::ScoreGradient(const Routing& routing, const Tensor& dweights,
                              int64_t experts) const {
  const Tensor along = at::sum(routing.weights * dweights, {1}, /*keepdim=*/true);
  if (weights == plan::RouterWeights::kOfChosen) {
    return at::zeros({dweights.size(0), experts}, dweights.options())
        .scatter_(1, routing.chosen, routing.weights * (dweights - along));
  }
  Tensor d = at::zeros({dweights.size(0), experts}, dweights.options());
  d.scatter_(1, routing.chosen, dweights);
  return d.sub_(along).mul_(routing.probabilities);
}

void Experts::Backward(const Tensor& dy, const Tensor& x, const Pass& pass, Saved& saved,
                       UnitGradients& gradients, Tensor* dx) const {
  const Routing& routing = saved.routing;
  const Tensor dout = dy.index_select(0, routing.tokens);
  const Tensor of_rows = routing.weights.reshape({-1})
                             .index_select(0, routing.order)
                             .unsqueeze(1)
                             .to(dy.scalar_type());
  // Of the unweighted outputs, whose products with what down reads are the weights' gradients.
  Tensor dactivated = at::empty({dout.size(0), down.inputs()}, dout.options());
  const Tensor dxa = down.InputGradient(dactivated, dout, routing.rows, pass);
  Tensor drows = at::sum(dactivated * saved.activated, {1}, false, at::kFloat);
  if (const Tensor bias = down.Bias(pass); bias.defined()) {
    const Tensor experts = routing.chosen.reshape({-1}).index_select(0, routing.order);
    drows.add_(at::sum(dout * bias.index_select(0, experts), {1}, false, at::kFloat));
  }
  if (down.trained(gradients)) {
    down.AddGradients(dout * of_rows, saved.activated, saved.down_xa,
                      dxa.defined() ? dxa * of_rows : Tensor(), routing.rows, pass, gradients);
  }
  saved.activated = saved.down_xa = Tensor();
  const Tensor dweights =
      drows.index_select(0, routing.places.reshape({-1})).view(routing.weights.sizes());
  const Tensor exact = ScoreGradient(routing, dweights, pass.weights[router].size(0));
  const Tensor dscores = exact.to(x.scalar_type());
  if (gradients.Wants(router_bias)) gradients.Add(router_bias, at::sum(exact, {0}));
  if (const ProductSum sum = gradients.Wants(router) ? gradients.Product(router) : ProductSum();
      sum.sum.defined()) {
    Tensor of_router = sum.sum;
    ops::Gemm(of_router, dscores.t(), x, 1.0, sum.beta);
  }
  if (dx == nullptr && !gate_up.trained(gradients)) return;
  Tensor dgate_up = std::exchange(saved.gate_up, Tensor());
  ops::GluBackward(dgate_up, dactivated.mul_(of_rows), dgate_up, kind);
  dactivated = Tensor();
  Tensor dgate_up_xa, drouted;
  if (dx != nullptr) {
    drouted = at::empty({dout.size(0), gate_up.inputs()}, dout.options());
    dgate_up_xa = gate_up.InputGradient(drouted, dgate_up, routing.rows, pass);
  } else {
    dgate_up_xa = gate_up.AdapterGradient(dgate_up, routing.rows, pass);
  }
  if (gate_up.trained(gradients)) {
    gate_up.AddGradients(dgate_up, x.index_select(0, routing.tokens), saved.gate_up_xa, dgate_up_xa,
                         routing.rows, pass, gradients);
  }
  if (dx == nullptr) return;
  const Tensor sum = SumOfChoices(drouted, routing, {});
  ops::Gemm(*dx, dscores, pass.weights[router], 1.0, 0.0);
  dx->add_(sum);
}

}  // namespace sft::engine
