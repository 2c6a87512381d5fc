#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "common/plan/model_config.h"
#include "worker/engine/nn/expert_linear.h"
#include "worker/engine/nn/norm.h"
#include "worker/engine/nn/pass.h"

namespace sft::engine {

// Which experts the tokens of a micro-batch go to: T tokens, E experts, k of them for each token,
// S = T k routed rows.
struct Routing {
  at::Tensor weights;  // fp32 [T, k]: what each chosen expert's output counts
  at::Tensor shares;   // the same before the experts' own scales; undefined where they have none
  at::Tensor chosen;   // int64 [T, k]: the experts
  // fp32 [T, E]: sigmoids, or the softmax over all scores, for kSoftmaxOfAll and for the routers'
  // balance.
  at::Tensor probabilities;
  at::Tensor tokens;      // int64 [S]: the token of each routed row, sorted by expert
  at::Tensor order;       // int64 [S]: its place in `weights`, token * k + choice
  at::Tensor places;      // int64 [T, k]: the routed row of each choice
  ops::RowGroups groups;  // the routed rows of each expert
};

// A mixture of experts in the place of a feed-forward layer: the sum over a token's k chosen
// experts of weight * down_e(act(gate_e(x)) * up_e(x)). H hidden size, I intermediate size of an
// expert.
//
// The router scores experts, scores = x W^T (+ b), in the activations' type, and in fp32 where it
// takes their sigmoids; its weights are fp32 (plan::RouterOptions). Outputs are weighed and added
// in fp32, in the order of the choices. Routing is decided once a step: what recomputes a layer is
// given the routing of its
// forward. With w the weights and dout the gradient of the sum, a token's choice j gets
//
//       dw_j = <dout W_down, a_j>        a_j what down reads, so down's output need not be kept
//       dscore_j = w_j (dw_j - sum_c w_c dw_c)                     softmax over the chosen
//       dscore_e = p_e ([e chosen] dw_e - sum_c p_c dw_c)          softmax over all
//       dscore_j = s (1 - s) c dw_j                                sigmoids s, scale c
//       dscore_j = s (1 - s) c (dw_j - sum_i (s_i / S) dw_i) / S   over their sum S
//
// A frozen router passes its gradient to x all the same. It may read rows of its own through a
// norm, and each expert may have a scale: w_j = scale_e s_j, with s_j the share above, whose
// gradient is then scale_e dw_j, that of the scale the sum of s_j dw_j over the choices of e.
//
// Where the stacks are in FP8, tokens' rows are converted before they are gathered, since several
// experts read each, and the activation and its gradient write theirs in FP8 as they make them.
struct Experts {
  int router = -1;        // position of its weight [E, H]
  int router_bias = -1;   // [E]; -1: none
  int correction = -1;    // fp32 [E]: added to sigmoids to choose by; -1: none
  Norm router_norm;       // of what the router reads; none: it reads that itself
  int expert_scale = -1;  // [E]; -1: none. Of softmax over the chosen alone
  ExpertLinear gate_up, down;
  int64_t chosen = 0;  // k
  plan::RouterOptions options;
  plan::ActivationKind kind = plan::ActivationKind::kSilu;

  explicit operator bool() const { return router >= 0; }

  // What the layer reads: rows [T, H] of the experts, and those of the router.
  struct Input {
    Input(at::Tensor rows) : rows(rows), scored(std::move(rows)) {}  // one for both
    Input(at::Tensor rows, at::Tensor scored) : rows(std::move(rows)), scored(std::move(scored)) {}

    at::Tensor rows, scored;
  };

  // Kept for the backward; Restore computes undefined ones again, but for the routing and down_xa.
  struct Saved {
    Routing routing;
    at::Tensor gate_up;    // [S, 2 I]
    at::Tensor activated;  // [S, I]
    at::Tensor gate_up_xa, down_xa;
  };
  // What every backward needs of them, whatever is computed again.
  static Saved AlwaysKept(Saved saved) {
    return {.routing = std::move(saved.routing), .down_xa = std::move(saved.down_xa)};
  }

  // Writes y [T, H] = the layer of x, plus `residual` where it is defined. Takes the routing of
  // `saved` where there is one.
  void Forward(at::Tensor& y, const Input& x, const at::Tensor& residual, const Pass& pass,
               Saved& saved) const;
  // Computes what is missing in `saved` for the backward.
  void Restore(const Input& x, const Pass& pass, Saved& saved) const;
  // Adds the parameters' gradients; writes that of x.rows [T, H] only where dx is not null, and
  // makes that of x.scored in `dscored`, which is null where both are one. Consumes `saved`.
  void Backward(const at::Tensor& dy, const Input& x, const Pass& pass, Saved& saved,
                UnitGradients& gradients, at::Tensor* dx, at::Tensor* dscored = nullptr) const;

 private:
  // What the router multiplies, of what it reads, with the norm's statistics where it has one.
  struct RouterRows {
    at::Tensor rows, statistics;
  };
  RouterRows NormedForRouter(const at::Tensor& scored, const Pass& pass) const;
  // fp32 [T, E].
  at::Tensor Scores(const at::Tensor& scored, const Pass& pass) const;
  // Fills `weights`, `chosen` and `probabilities` of scores [T, E].
  void Choose(const at::Tensor& scores, const Pass& pass, Routing& routing) const;
  Routing Route(const at::Tensor& scored, const Pass& pass) const;
  bool HasSigmoids() const { return options.weights >= plan::RouterWeights::kSigmoid; }
  void RestoreGateUp(const Input& x, const Pass& pass, Saved& saved) const;
  // fp32 [T, k]: the scale of each chosen expert.
  at::Tensor ScalesOfChosen(const Routing& routing, const Pass& pass) const;
  // act(gate) * up, made where it is missing; with `multiplied`, in FP8 too if down is in FP8.
  Activation Activate(const Pass& pass, bool multiplied, Saved& saved) const;
  // Adds down's gradients, of routed rows that count `weights` [S]; returns that of what down reads
  // [S, I], as if each counted 1.
  at::Tensor DownBackward(const at::Tensor& dy, const at::Tensor& weights, const Pass& pass,
                          Saved& saved, UnitGradients& gradients) const;
  // The gradient of the choices' weights [T, k], fp32, of the products [S] of what down reads with
  // its gradient.
  at::Tensor WeightGradients(const at::Tensor& products, const at::Tensor& dy,
                             const Routing& routing, const Pass& pass) const;
  // Adds the router's gradients; returns that of what it reads [T, H], if needed.
  at::Tensor RouterBackward(const at::Tensor& scored, const Routing& routing,
                            const at::Tensor& dweights, const Pass& pass, UnitGradients& gradients,
                            bool need_dx) const;
  at::Tensor InBestGroups(const at::Tensor& scores) const;
  at::Tensor SigmoidGradient(const Routing& routing, const at::Tensor& dweights) const;
  // dw [T, k], of the shares where experts have scales -> the gradient of the scores [T, E], fp32.
  at::Tensor ScoreGradient(const Routing& routing, const at::Tensor& dweights,
                           int64_t experts) const;
};

}  // namespace sft::engine
