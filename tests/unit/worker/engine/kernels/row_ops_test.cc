#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <vector>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

Tensor Random(at::IntArrayRef shape, int seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

double RelativeError(const Tensor& actual, const Tensor& expected) {
  return (actual.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>() /
         (expected.to(at::kDouble).norm().item<double>() + 1e-30);
}

// Gradients of sum(y * dy) by autograd.
std::vector<Tensor> Gradients(const Tensor& y, const Tensor& dy,
                              const std::vector<Tensor>& inputs) {
  return torch::autograd::grad({y}, inputs, {dy});
}

TEST(RmsNormTest, EqualsThePlainFormulaAndItsAutograd) {
  for (int64_t hidden : {1, 7, 16, 33, 576}) {
    Tensor x = Random({5, 3, hidden}, 1).set_requires_grad(true);
    Tensor w = Random({hidden}, 2).set_requires_grad(true);
    const Tensor expected = w * (x * at::rsqrt(x.square().mean({-1}, true) + 1e-5));
    const Tensor dy = Random(x.sizes(), 3);
    const auto grads = Gradients(expected, dy, {x, w});
    const auto [y, rstd] = ops::RmsNorm(x.detach(), w.detach(), 1e-5);
    const auto [dx, dw] = ops::RmsNormBackward(dy, x.detach(), w.detach(), rstd, true);
    EXPECT_EQ(rstd.sizes(), at::IntArrayRef({5, 3}));
    EXPECT_LT(RelativeError(y, expected.detach()), 1e-6);
    EXPECT_LT(RelativeError(dx, grads[0]), hidden == 1 ? 1e-2 : 2e-6) << hidden;
    EXPECT_LT(RelativeError(dw, grads[1]), 1e-6);
  }
}

TEST(RmsNormTest, RoundsInTheOrderOfTransformersForBf16) {
  const Tensor x = Random({64, 96}, 4).to(at::kBFloat16);
  const Tensor w = Random({96}, 5).to(at::kBFloat16);
  const Tensor x32 = x.to(at::kFloat);
  const Tensor normed = x32 * at::rsqrt(x32.square().mean({-1}, true) + 1e-6);
  const Tensor expected = w * normed.to(at::kBFloat16);
  const Tensor y = std::get<0>(ops::RmsNorm(x, w, 1e-6));
  // rsqrt and the order of the sum may differ by an ulp of fp32, seldom one of bf16.
  EXPECT_LT((y != expected).sum().item<int64_t>(), 6144 / 100);
  EXPECT_LT(RelativeError(y, expected), 1e-3);
}

TEST(RmsNormTest, WithoutWeightGradientReturnsNone) {
  const Tensor x = Random({4, 8}, 1);
  const Tensor w = at::ones({8});
  const auto [y, rstd] = ops::RmsNorm(x, w, 1e-5);
  EXPECT_EQ(std::get<1>(ops::RmsNormBackward(y, x, w, rstd, false)).numel(), 0);
}

TEST(RopeTest, RotatesHalvesOfStridedHeadsAndBack) {
  const int64_t tokens = 9, heads = 3, size = 10;
  const Tensor all = Random({tokens, heads + 2, size}, 6);
  Tensor x = all.clone().narrow(1, 1, heads);
  const Tensor original = x.clone();
  const Tensor angle = Random({tokens, size / 2}, 7);
  const Tensor cos = angle.cos(), sin = angle.sin();
  const Tensor first = original.narrow(2, 0, size / 2),
               second = original.narrow(2, size / 2, size / 2);
  const Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const Tensor expected = at::cat({first * c - second * s, second * c + first * s}, 2);
  ops::Rope(x, cos, sin, false);
  EXPECT_TRUE(at::allclose(x, expected, 1e-6, 1e-6));
  ops::Rope(x, cos, sin, true);
  EXPECT_TRUE(at::allclose(x, original, 1e-5, 1e-6));
}

TEST(SwigluTest, EqualsAutograd) {
  Tensor gate = Random({13, 50}, 8).set_requires_grad(true);
  Tensor up = Random({13, 50}, 9).set_requires_grad(true);
  const Tensor expected = at::silu(gate) * up;
  const Tensor dy = Random({13, 50}, 10);
  const auto grads = Gradients(expected, dy, {gate, up});
  const auto [dgate, dup] = ops::SwigluBackward(dy, gate.detach(), up.detach());
  EXPECT_TRUE(at::equal(ops::Swiglu(gate.detach(), up.detach()), expected.detach()));
  EXPECT_LT(RelativeError(dgate, grads[0]), 1e-6);
  EXPECT_LT(RelativeError(dup, grads[1]), 1e-6);
}

TEST(CrossEntropyTest, GivesTheSumAndSoftmaxMinusOnehotInPlace) {
  const Tensor logits = Random({11, 101}, 11) * 4;
  Tensor targets = at::randint(0, 101, {11}, at::detail::createCPUGenerator(1), at::kLong);
  targets[3] = -100;
  Tensor leaf = logits.clone().set_requires_grad(true);
  const Tensor expected = at::cross_entropy_loss(leaf, targets, {}, at::Reduction::Sum, -100);
  const auto grads = torch::autograd::grad({expected}, {leaf});
  Tensor work = logits.clone();
  EXPECT_NEAR(ops::CrossEntropy(work, targets, false).item<float>(), expected.item<float>(), 1e-3);
  EXPECT_TRUE(at::equal(work, logits));
  EXPECT_NEAR(ops::CrossEntropy(work, targets, true).item<float>(), expected.item<float>(), 1e-3);
  EXPECT_LT(RelativeError(work, grads[0]), 1e-6);
  EXPECT_EQ(work[3].abs().sum().item<float>(), 0.0f);
}

TEST(CrossEntropyTest, LeavesTheGradientInBf16LogitsToo) {
  const Tensor logits = (Random({5, 33}, 12) * 4).to(at::kBFloat16);
  const Tensor targets = at::arange(5, at::kLong);
  Tensor exact = logits.to(at::kFloat), rounded = logits.clone();
  ops::CrossEntropy(exact, targets, true);
  ops::CrossEntropy(rounded, targets, true);
  EXPECT_TRUE(at::equal(rounded, exact.to(at::kBFloat16)));
}

TEST(CrossEntropyTest, RefusesATargetOutsideTheVocabulary) {
  Tensor logits = Random({2, 5}, 1);
  EXPECT_THROW(ops::CrossEntropy(logits, at::full({2}, 5, at::kLong), true), c10::Error);
}

}  // namespace
}  // namespace sft::engine
