#include "worker/engine/nn/head_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/engine/nn/dropout.h"

namespace sft::engine {
namespace {

using at::Tensor;

TEST(HeadLossTest, ChunksGiveTheLossAndGradientsOfTheWhole) {
  const at::Generator generator = at::detail::createCPUGenerator(1);
  const Tensor x = at::randn({37, 16}, generator, at::kFloat);
  const Tensor weight = at::randn({50, 16}, generator, at::kFloat);
  const Tensor targets = at::randint(0, 50, {37}, generator, at::kLong);
  Tensor whole_dw = at::zeros({50, 16}), chunked_dw = at::zeros({50, 16});
  const auto whole = HeadLoss{100}.ForwardBackward(x, weight, targets, whole_dw, true);
  const auto chunked = HeadLoss{8}.ForwardBackward(x, weight, targets, chunked_dw, true);
  EXPECT_NEAR(whole.loss.item<double>(), chunked.loss.item<double>(), 1e-3);
  EXPECT_NEAR(HeadLoss{8}.Forward(x, weight, targets).item<double>(), whole.loss.item<double>(),
              1e-3);
  EXPECT_TRUE(at::allclose(whole.dx, chunked.dx, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(whole_dw, chunked_dw, 1e-5, 1e-5));
}

// 48 is one product, 50 is two, 5 has no whole part.
TEST(HeadLossTest, VocabulariesOfAnySizeGiveWhatAutogradDoes) {
  for (const int64_t vocabulary : {48, 50, 5}) {
    const at::Generator generator = at::detail::createCPUGenerator(2);
    Tensor x = at::randn({19, 16}, generator, at::kFloat).set_requires_grad(true);
    Tensor weight = at::randn({vocabulary, 16}, generator, at::kFloat).set_requires_grad(true);
    const Tensor targets = at::randint(0, vocabulary, {19}, generator, at::kLong);
    const Tensor logits = 0.5 * at::matmul(x, weight.t());
    const Tensor expected = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum);
    expected.backward();
    Tensor dweight = at::ones({vocabulary, 16});
    const auto result =
        HeadLoss{8, 0.5}.ForwardBackward(x.detach(), weight.detach(), targets, dweight, true);
    EXPECT_NEAR(result.loss.item<double>(), expected.item<double>(), 1e-4) << vocabulary;
    EXPECT_TRUE(at::allclose(result.dx, x.grad(), 1e-5, 1e-6)) << vocabulary;
    EXPECT_TRUE(at::allclose(dweight, weight.grad() + 1, 1e-5, 1e-5)) << vocabulary;
  }
}

TEST(HeadLossTest, CappedLogitsGiveWhatAutogradDoes) {
  const at::Generator generator = at::detail::createCPUGenerator(4);
  Tensor x = at::randn({19, 16}, generator, at::kFloat).set_requires_grad(true);
  Tensor weight = at::randn({50, 16}, generator, at::kFloat).set_requires_grad(true);
  const Tensor targets = at::randint(0, 50, {19}, generator, at::kLong);
  const Tensor logits = 3.0 * at::tanh(0.5 * at::matmul(x, weight.t()) / 3.0);
  const Tensor expected = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum);
  expected.backward();
  const HeadLoss head{.chunk_rows = 8, .scale = 0.5, .cap = 3.0};
  Tensor dweight = at::zeros({50, 16});
  const auto result = head.ForwardBackward(x.detach(), weight.detach(), targets, dweight, true);
  EXPECT_NEAR(result.loss.item<double>(), expected.item<double>(), 1e-4);
  EXPECT_NEAR(head.Forward(x.detach(), weight.detach(), targets).item<double>(),
              expected.item<double>(), 1e-4);
  EXPECT_TRUE(at::allclose(result.dx, x.grad(), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(dweight, weight.grad(), 1e-5, 1e-5));
  Tensor whole = at::matmul(x.detach(), weight.detach().t());
  head.Finish(whole);
  EXPECT_TRUE(at::allclose(whole, logits.detach(), 1e-5, 1e-6));
}

TEST(HeadLossTest, NoRowsGiveZeroAndAnEmptyGradient) {
  const auto none = HeadLoss{8}.ForwardBackward(at::empty({0, 4}), at::ones({5, 4}),
                                                at::empty({0}, at::kLong), {}, true);
  EXPECT_EQ(none.loss.item<double>(), 0.0);
  EXPECT_EQ(none.dx.size(0), 0);
}

TEST(DropoutTest, MasksRepeatForAKeyAndDifferBetweenModulesAndKeys) {
  const Tensor x = at::ones({40, 40});
  const DropoutKey key = DropoutKey::Of(1, 2, 3, 4);
  const Tensor once = Dropout(x, 0.25, key, 5);
  EXPECT_TRUE(at::equal(once, Dropout(x, 0.25, key, 5)));
  EXPECT_FALSE(at::equal(once, Dropout(x, 0.25, key, 6)));
  EXPECT_FALSE(at::equal(once, Dropout(x, 0.25, DropoutKey::Of(1, 2, 3, 5), 5)));
  EXPECT_NEAR(once.mean().item<float>(), 1.0, 0.05);
  EXPECT_NEAR((once == 0).to(at::kFloat).mean().item<float>(), 0.25, 0.04);
}

}  // namespace
}  // namespace sft::engine
