#include "worker/engine/nn/router_balance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace sft::engine {
namespace {

using at::Tensor;

constexpr double kWeight = 3.0;
constexpr int64_t kExperts = 5, kChosen = 2;

struct Layer {
  Tensor scores;  // [T, E]
  Tensor probabilities() const { return at::softmax(scores, 1).to(at::kFloat); }
  Tensor chosen() const { return std::get<1>(at::topk(scores, kChosen, 1)); }
};

// The loss by its definition, of scores in fp64 and choices that stay.
double Loss(const std::vector<Tensor>& scores, const std::vector<Tensor>& chosen) {
  Tensor all = at::cat(scores), choices = at::cat(chosen);
  const auto tokens = static_cast<double>(all.size(0));
  const Tensor f =
      at::one_hot(choices, kExperts).sum(at::IntArrayRef({0, 1})).to(at::kDouble) / tokens;
  return kWeight * kExperts * (f * at::softmax(all, 1).mean({0})).sum().item<double>();
}

TEST(RouterBalanceTest, LossAndGradientAreThoseOfTheDefinition) {
  at::manual_seed(2);
  const Layer layers[] = {{at::randn({7, kExperts}, at::kDouble)},
                          {at::randn({7, kExperts}, at::kDouble)}};
  RouterBalance balance(kWeight);
  std::vector<Tensor> scores, chosen;
  for (const Layer& layer : layers) {
    balance.Count(layer.chosen(), layer.probabilities());
    scores.push_back(layer.scores.clone());
    chosen.push_back(layer.chosen());
  }
  EXPECT_NEAR(balance.Finish().item<double>(), Loss(scores, chosen), 1e-6);
  balance.Count(layers[0].chosen(), layers[0].probabilities());  // routed again: not counted
  constexpr double kStep = 1e-4;
  for (size_t i = 0; i < 2; ++i) {
    Tensor gradient = at::ones({7, kExperts});
    balance.AddGradient(gradient, layers[i].probabilities());
    for (int64_t token = 0; token < 7; ++token) {
      for (int64_t expert = 0; expert < kExperts; ++expert) {
        const auto at_step = [&](double step) {
          std::vector<Tensor> moved = {scores[0].clone(), scores[1].clone()};
          moved[i][token][expert].add_(step);
          return Loss(moved, chosen);
        };
        const double expected = (at_step(kStep) - at_step(-kStep)) / (2 * kStep);
        EXPECT_NEAR(gradient[token][expert].item<double>() - 1.0, expected, 1e-6);
      }
    }
  }
}

TEST(RouterBalanceTest, EvenlyBusyExpertsHaveALossOfTheChoices) {
  Tensor scores = at::zeros({kExperts, kExperts}, at::kDouble);
  Tensor chosen = at::empty({kExperts, kChosen}, at::kLong);
  for (int64_t i = 0; i < kExperts; ++i) {
    for (int64_t j = 0; j < kChosen; ++j) chosen[i][j] = (i + j) % kExperts;
  }
  RouterBalance balance(1.0);
  balance.Count(chosen, at::softmax(scores, 1).to(at::kFloat));
  EXPECT_NEAR(balance.Finish().item<double>(), kChosen, 1e-6);
}

TEST(RouterBalanceTest, WithoutExpertsThereIsNoLoss) {
  EXPECT_FALSE(RouterBalance(1.0).Finish().defined());
}

}  // namespace
}  // namespace sft::engine
