#include "worker/engine/nn/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/projection.h"
#include "worker/engine/nn/router_balance.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

namespace {

// transformers adds it to the sum of sigmoids that it divides by.
constexpr double kLeastSum = 1e-20;

// Sums [T, 1] of columns [T, k], added in their order whatever T is.
Tensor SumOfColumns(const Tensor& columns) {
  Tensor sum = columns.narrow(1, 0, 1).clone();
  for (int64_t j = 1; j < columns.size(1); ++j) sum.add_(columns.narrow(1, j, 1));
  return sum;
}

// Pass::adapter_rows [S, 1] of routed rows.
Tensor AdapterRows(const Pass& pass, const Routing& routing) {
  if (!pass.adapter_rows.defined()) return {};
  return pass.adapter_rows.index_select(0, routing.tokens);
}

// The rows of each expert, of the sorted experts of all routed rows.
ops::RowGroups GroupsOf(const Tensor& sorted, int64_t experts) {
  const Tensor borders = at::arange(experts + 1, sorted.options());
  return ops::RowGroups(at::searchsorted(sorted, borders, /*out_int32=*/true));
}

// The rows x [T, C] of the tokens that the routed rows are of.
Tensor RowsOfTokens(const Tensor& x, const Routing& routing) {
  Tensor rows = at::empty({routing.tokens.size(0), x.size(1)}, x.options());
  ops::TakeRows(rows, x, routing.tokens);
  return rows;
}

// The same for a linear that reads them: in FP8 too where its products are.
Activation InputOfTokens(const Tensor& x, const Routing& routing, const ExpertLinear& reader,
                         const Pass& pass) {
  Activation rows = RowsOfTokens(x, routing);
  if (!reader.in_fp8(pass)) return rows;
  ops::Fp8Rows of_tokens = reader.Fp8Room(x, pass);
  ops::Fp8Quantize(of_tokens.values, of_tokens.scale, x);
  rows.fp8.values = at::empty(rows.rows.sizes(), of_tokens.values.options());
  rows.fp8.scale = of_tokens.scale.index_select(0, routing.tokens);
  // Bytes, taken two by two: FP8 products have an even number of columns.
  Tensor taken = rows.fp8.values.view(at::kBFloat16);
  ops::TakeRows(taken, of_tokens.values.view(at::kBFloat16), routing.tokens);
  return rows;
}

// sum = a b + beta sum, also where the sum is in a narrower type than fp32 factors.
void AddRouterProduct(const ProductSum& sum, const Tensor& a, const Tensor& b) {
  Tensor into = sum.sum;
  if (into.scalar_type() == at::kFloat || into.scalar_type() == a.scalar_type()) {
    ops::Gemm(into, a, b, 1.0, sum.beta);
    return;
  }
  Tensor product = at::empty(into.sizes(), into.options().dtype(at::kFloat));
  ops::Gemm(product, a, b, 1.0, 0.0);
  if (sum.beta == 0.0) {
    into.copy_(product);
  } else {
    into.mul_(sum.beta).add_(product);
  }
}

}  // namespace

Experts::RouterRows Experts::NormedForRouter(const Tensor& scored, const Pass& pass) const {
  if (!router_norm) return {scored, {}};
  Activation normed = at::empty(scored.sizes(), scored.options());
  const Tensor statistics = router_norm.Forward(normed, scored, pass);
  return {normed.rows, statistics};
}

Tensor Experts::Scores(const Tensor& scored, const Pass& pass) const {
  const Tensor x = NormedForRouter(scored, pass).rows;
  const at::ScalarType type = HasSigmoids() ? at::kFloat : x.scalar_type();
  const Tensor table = pass.weights[router].to(type);
  Tensor scores = at::empty({x.size(0), table.size(0)}, x.options().dtype(type));
  AddProduct(scores, x.to(type), table, {}, 1.0, pass);
  if (router_bias >= 0) ops::AddBias(scores, pass.weights[router_bias]);
  scores = scores.to(at::kFloat);
  return options.score_scale == 1.0 ? scores : scores.mul_(options.score_scale);
}

Tensor Experts::ScalesOfChosen(const Routing& routing, const Pass& pass) const {
  const Tensor scales = pass.weights[expert_scale].to(at::kFloat);
  return scales.index_select(0, routing.chosen.reshape({-1})).view_as(routing.chosen);
}

// The scores to choose by, without those of groups that are not among the best.
Tensor Experts::InBestGroups(const Tensor& scores) const {
  if (options.groups == 1) return scores;
  const Tensor groups = scores.unflatten(1, {options.groups, -1});
  const Tensor sums = at::sum(std::get<0>(at::topk(groups, 2, 2)), {2});
  const Tensor best = std::get<1>(at::topk(sums, options.best_groups, 1));
  Tensor kept = at::full_like(groups, -std::numeric_limits<double>::infinity());
  const Tensor index = best.unsqueeze(2).expand({-1, -1, groups.size(2)});
  kept.scatter_(1, index, groups.gather(1, index));
  return kept.flatten(1);
}

void Experts::Choose(const Tensor& scores, const Pass& pass, Routing& routing) const {
  if (!HasSigmoids()) {
    const auto [largest, which] = at::topk(scores, chosen, 1);
    routing.chosen = which;
    const bool of_chosen = options.weights == plan::RouterWeights::kSoftmaxOfTopK;
    if (!of_chosen || pass.balance != nullptr) routing.probabilities = at::softmax(scores, 1);
    routing.weights = of_chosen ? at::softmax(largest, 1) : routing.probabilities.gather(1, which);
    if (expert_scale >= 0) {
      routing.shares = routing.weights;
      routing.weights = routing.shares * ScalesOfChosen(routing, pass);
    }
    if (pass.balance != nullptr) pass.balance->Count(which, routing.probabilities);
    return;
  }
  routing.probabilities = Sigmoids(scores);
  const Tensor by =
      correction >= 0 ? routing.probabilities.add(pass.weights[correction]) : routing.probabilities;
  routing.chosen = std::get<1>(at::topk(InBestGroups(by), chosen, 1));
  routing.weights = routing.probabilities.gather(1, routing.chosen);
  if (options.weights == plan::RouterWeights::kSigmoidOverTheirSum) {
    routing.weights.div_(SumOfColumns(routing.weights).add_(kLeastSum));
  }
  routing.weights.mul_(options.scale);
}

Routing Experts::Route(const Tensor& scored, const Pass& pass) const {
  const int64_t experts = pass.weights[router].size(0);
  Routing routing;
  Choose(Scores(scored, pass), pass, routing);
  const Tensor& which = routing.chosen;
  // Narrow keys: a GPU sorts by so many bits.
  auto [sorted, order] =
      at::sort(which.reshape({-1}).to(at::kShort), /*stable=*/true, /*dim=*/0, false);
  routing.groups = GroupsOf(sorted, experts);
  routing.tokens = order.div(chosen, "floor");
  Tensor places = at::empty_like(order);
  places.index_copy_(0, order, at::arange(order.size(0), order.options()));
  routing.places = places.view({-1, chosen});
  routing.order = std::move(order);
  return routing;
}

void Experts::RestoreGateUp(const Input& x, const Pass& pass, Saved& saved) const {
  if (saved.gate_up.defined()) return;
  if (!saved.routing.weights.defined()) saved.routing = Route(x.scored, pass);
  const Routing& routing = saved.routing;
  saved.gate_up = at::empty({routing.tokens.size(0), gate_up.outputs()}, x.rows.options());
  saved.gate_up_xa = gate_up.Forward(saved.gate_up, InputOfTokens(x.rows, routing, gate_up, pass),
                                     routing.groups, pass, AdapterRows(pass, routing));
}

Activation Experts::Activate(const Pass& pass, bool multiplied, Saved& saved) const {
  if (saved.activated.defined()) return saved.activated;
  saved.activated = at::empty({saved.gate_up.size(0), down.inputs()}, saved.gate_up.options());
  Activation made = saved.activated;
  if (multiplied) made.fp8 = down.Fp8Room(made.rows, pass);
  ops::Glu(made.rows, saved.gate_up, kind, made.fp8);
  return made;
}

void Experts::Forward(Tensor& y, const Input& x, const Tensor& residual, const Pass& pass,
                      Saved& saved) const {
  RestoreGateUp(x, pass, saved);
  Activation activated = Activate(pass, /*multiplied=*/true, saved);
  const Routing& routing = saved.routing;
  Tensor outputs = at::empty({saved.activated.size(0), down.outputs()}, y.options());
  saved.down_xa =
      down.Forward(outputs, activated, routing.groups, pass, AdapterRows(pass, routing));
  activated = Activation();
  ops::CombineRows(y, outputs, routing.places, routing.weights, residual);
}

void Experts::Restore(const Input& x, const Pass& pass, Saved& saved) const {
  RestoreGateUp(x, pass, saved);
  Activate(pass, /*multiplied=*/false, saved);
}

Tensor Experts::SigmoidGradient(const Routing& routing, const Tensor& dweights) const {
  const Tensor s = routing.probabilities.gather(1, routing.chosen);
  Tensor d = dweights;
  if (options.weights == plan::RouterWeights::kSigmoidOverTheirSum) {
    const Tensor sum = at::sum(s, {1}, /*keepdim=*/true).add_(kLeastSum);
    d = d.sub(at::sum(s * d, {1}, /*keepdim=*/true).div_(sum)).div_(sum);
  }
  return d.mul(options.scale).mul_(s).mul_(s.neg().add_(1.0));
}

Tensor Experts::ScoreGradient(const Routing& routing, const Tensor& dweights,
                              int64_t experts) const {
  Tensor all = at::zeros({dweights.size(0), experts}, dweights.options());
  if (HasSigmoids()) return all.scatter_(1, routing.chosen, SigmoidGradient(routing, dweights));
  const Tensor& shares = routing.shares.defined() ? routing.shares : routing.weights;
  const Tensor along = at::sum(shares * dweights, {1}, /*keepdim=*/true);
  if (options.weights == plan::RouterWeights::kSoftmaxOfTopK) {
    return all.scatter_(1, routing.chosen, shares * (dweights - along));
  }
  return all.scatter_(1, routing.chosen, dweights).sub_(along).mul_(routing.probabilities);
}

Tensor Experts::DownBackward(const Tensor& dy, const Tensor& weights, const Pass& pass,
                             Saved& saved, UnitGradients& gradients) const {
  const Routing& routing = saved.routing;
  Activation of_outputs = InputOfTokens(dy, routing, down, pass);
  Tensor dout = of_outputs.rows;
  Tensor dactivated = at::empty({dout.size(0), down.inputs()}, dout.options());
  Tensor dxa = down.InputGradient(dactivated, of_outputs, routing.groups, pass);
  of_outputs = Activation();
  if (down.trained(gradients)) {
    // An adapter's two gradients are linear in dxa and in xa, which are narrower than dout. Weights
    // are rounded to the type of the rows here, as those of activations are.
    const Tensor of_rows = weights.unsqueeze(1).to(dy.scalar_type());
    const bool stack = down.stack_trained(gradients);
    if (stack) dout.mul_(of_rows);
    if (dxa.defined()) dxa.mul_(of_rows);
    if (saved.down_xa.defined() && !stack) saved.down_xa.mul_(of_rows);
    down.AddGradients(dout, saved.activated, saved.down_xa, dxa, routing.groups, gradients);
  }
  saved.activated = saved.down_xa = Tensor();
  return dactivated;
}

Tensor Experts::WeightGradients(const Tensor& products, const Tensor& dy, const Routing& routing,
                                const Pass& pass) const {
  Tensor dweights = products.index_select(0, routing.places.reshape({-1})).view_as(routing.weights);
  if (const Tensor bias = down.Bias(pass); bias.defined()) {
    Tensor of_biases = at::empty({dy.size(0), bias.size(0)}, dy.options().dtype(at::kFloat));
    ops::Gemm(of_biases, dy, bias.t(), 1.0, 0.0);
    dweights.add_(of_biases.gather(1, routing.chosen));
  }
  return dweights;
}

Tensor Experts::RouterBackward(const Tensor& scored, const Routing& routing, const Tensor& dweights,
                               const Pass& pass, UnitGradients& gradients, bool need_dx) const {
  const int64_t experts = pass.weights[router].size(0);
  Tensor dshares = dweights;
  if (expert_scale >= 0) {
    if (gradients.Wants(expert_scale)) {
      // Not by adding at places, which a GPU does in any order.
      Tensor all = at::zeros({dweights.size(0), experts}, dweights.options());
      all.scatter_(1, routing.chosen, routing.shares * dweights);
      gradients.Add(expert_scale, at::sum(all, {0}));
    }
    dshares = dweights * ScalesOfChosen(routing, pass);
  }
  Tensor exact = ScoreGradient(routing, dshares, experts);
  if (pass.balance != nullptr) pass.balance->AddGradient(exact, routing.probabilities);
  if (options.score_scale != 1.0) exact.mul_(options.score_scale);
  const RouterRows read = NormedForRouter(scored, pass);
  const Tensor& x = read.rows;
  // The product that made the scores is in fp32 where their sigmoids are taken.
  const at::ScalarType type = HasSigmoids() ? at::kFloat : x.scalar_type();
  const Tensor dscores = exact.to(type);
  if (gradients.Wants(router_bias)) gradients.Add(router_bias, at::sum(exact, {0}));
  if (const ProductSum sum = gradients.Wants(router) ? gradients.Product(router) : ProductSum();
      sum.sum.defined()) {
    AddRouterProduct(sum, dscores.t(), x.to(type));
  }
  if (!need_dx) return {};
  Tensor dx = at::empty(x.sizes(), x.options().dtype(type));
  ops::Gemm(dx, dscores, pass.weights[router].to(type), 1.0, 0.0);
  if (!router_norm) return dx;
  Activation through = dx;
  router_norm.Backward(through, dx, scored, read.statistics, Tensor(), pass, gradients);
  return through.rows;
}

void Experts::Backward(const Tensor& dy, const Input& x, const Pass& pass, Saved& saved,
                       UnitGradients& gradients, Tensor* dx, Tensor* dscored) const {
  const Routing& routing = saved.routing;
  const Tensor weights = routing.weights.reshape({-1}).index_select(0, routing.order);
  Tensor dactivated = DownBackward(dy, weights, pass, saved, gradients);
  Tensor dgate_up = std::exchange(saved.gate_up, Tensor());
  ops::Fp8Rows fp8;
  if (dx != nullptr) fp8 = gate_up.Fp8Room(dgate_up, pass);
  const Tensor products =
      ops::WeighedGluBackward(dgate_up, dactivated, dgate_up, weights, kind, fp8);
  dactivated = Tensor();
  Tensor of_router = RouterBackward(x.scored, routing, WeightGradients(products, dy, routing, pass),
                                    pass, gradients, /*need_dx=*/dx != nullptr);
  if (dscored != nullptr) *dscored = std::exchange(of_router, Tensor());
  if (dx == nullptr && !gate_up.trained(gradients)) return;
  Tensor dgate_up_xa, drouted;
  if (dx != nullptr) {
    drouted = at::empty({dgate_up.size(0), gate_up.inputs()}, dgate_up.options());
    dgate_up_xa =
        gate_up.InputGradient(drouted, {dgate_up, std::exchange(fp8, {})}, routing.groups, pass);
  } else {
    dgate_up_xa = gate_up.AdapterGradient(dgate_up, routing.groups, pass);
  }
  if (gate_up.trained(gradients)) {
    gate_up.AddGradients(dgate_up, RowsOfTokens(x.rows, routing), saved.gate_up_xa, dgate_up_xa,
                         routing.groups, gradients);
  }
  if (dx != nullptr) ops::CombineRows(*dx, drouted, routing.places, {}, of_router);
}

}  // namespace sft::engine
