#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sft::engine {

// The auxiliary loss that keeps the experts of a model evenly busy (transformers'
// load_balancing_loss_func): over the tokens of all layers with experts together, of which there
// are N, with f_e = choices of expert e / N and P_e = the mean of its probabilities, a softmax over
// all scores,
//
//       loss = E sum_e f_e P_e        d loss / d p_e of a token = E f_e / N
//
// It is k where all experts are as busy, k the experts a token goes to. A forward of a micro-batch
// counts, its backward takes the gradient.
class RouterBalance {
 public:
  // `weight` multiplies the loss.
  explicit RouterBalance(double weight) : weight_(weight) {}

  // One layer's tokens: `chosen` int64 [T, k], `probabilities` fp32 [T, E]. Nothing once it has
  // finished: what is routed again was counted.
  void Count(const at::Tensor& chosen, const at::Tensor& probabilities);
  // After the forward. Returns weight * loss, fp32 scalar; undefined if nothing was counted.
  at::Tensor Finish();
  // Adds the gradient of the scores [T, E], fp32, of tokens with these probabilities.
  void AddGradient(at::Tensor& dscores, const at::Tensor& probabilities) const;

 private:
  double weight_;
  int64_t tokens_ = 0;  // N
  at::Tensor choices_, sums_;
  at::Tensor gradient_;  // fp32 [E], weight * E f_e / N
};

}  // namespace sft::engine
