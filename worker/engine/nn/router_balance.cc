#include "worker/engine/nn/router_balance.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sum.h>

namespace sft::engine {

using at::Tensor;

void RouterBalance::Count(const Tensor& chosen, const Tensor& probabilities) {
  if (gradient_.defined()) return;
  // By comparison: a histogram would add in any order on a GPU.
  const Tensor experts = at::arange(probabilities.size(1), chosen.options());
  const Tensor choices = at::sum(chosen.reshape({-1, 1}).eq(experts), {0}, false, at::kFloat);
  const Tensor sums = at::sum(probabilities, {0});
  tokens_ += probabilities.size(0);
  choices_ = choices_.defined() ? choices_ + choices : choices;
  sums_ = sums_.defined() ? sums_ + sums : sums;
}

Tensor RouterBalance::Finish() {
  if (tokens_ == 0) return {};
  const auto tokens = static_cast<double>(tokens_);
  gradient_ = choices_ * (weight_ * static_cast<double>(choices_.size(0)) / (tokens * tokens));
  return at::sum(gradient_ * sums_);
}

void RouterBalance::AddGradient(Tensor& dscores, const Tensor& probabilities) const {
  const Tensor weighted = probabilities * gradient_;
  dscores.add_(weighted - probabilities * at::sum(weighted, {1}, /*keepdim=*/true));
}

}  // namespace sft::engine
