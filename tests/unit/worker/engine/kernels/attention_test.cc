#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

struct Case {
  std::vector<int64_t> lengths;
  int64_t heads, key_heads, size, window;
};

Tensor Random(at::IntArrayRef shape, int seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

// One score matrix over all tokens with a mask that says who sees whom.
std::tuple<Tensor, Tensor> PlainAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Case& c, double scale) {
  const int64_t tokens = q.size(0);
  Tensor mask = at::full({tokens, tokens}, -std::numeric_limits<float>::infinity());
  int64_t first = 0;
  for (int64_t length : c.lengths) {
    for (int64_t i = 0; i < length; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        if (c.window == 0 || i - j < c.window) mask[first + i][first + j] = 0;
      }
    }
    first += length;
  }
  const int64_t group = c.heads / c.key_heads;
  const Tensor keys = k.repeat_interleave(group, 1).permute({1, 2, 0});
  const Tensor values = v.repeat_interleave(group, 1).permute({1, 0, 2});
  const Tensor scores = at::matmul(q.permute({1, 0, 2}), keys) * scale + mask;
  return {at::matmul(at::softmax(scores, -1), values).permute({1, 0, 2}),
          at::logsumexp(scores, {-1})};
}

double RelativeError(const Tensor& actual, const Tensor& expected) {
  return (actual - expected).norm().item<double>() / (expected.norm().item<double>() + 1e-30);
}

class AttentionTest : public testing::TestWithParam<Case> {};

TEST_P(AttentionTest, EqualsMaskedAttentionOverAllTokensAndItsAutograd) {
  const Case& c = GetParam();
  int64_t tokens = 0;
  std::vector<int32_t> ends = {0};
  for (int64_t length : c.lengths) ends.push_back(static_cast<int32_t>(tokens += length));
  const Tensor cu_seqlens = at::tensor(ends, at::kInt);
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.size));
  Tensor q = Random({tokens, c.heads, c.size}, 1).set_requires_grad(true);
  Tensor k = Random({tokens, c.key_heads, c.size}, 2).set_requires_grad(true);
  Tensor v = Random({tokens, c.key_heads, c.size}, 3).set_requires_grad(true);
  const Tensor dout = Random(q.sizes(), 4);
  const auto [expected, expected_lse] = PlainAttention(q, k, v, c, scale);
  const auto grads = torch::autograd::grad({expected}, {q, k, v}, {dout});

  const ops::Documents documents{cu_seqlens, c.lengths};
  const Tensor qd = q.detach(), kd = k.detach(), vd = v.detach();
  const auto [out, lse] = ops::Attention(qd, kd, vd, documents, scale, c.window);
  const auto [dq, dk, dv] =
      ops::AttentionBackward(dout, qd, kd, vd, out, lse, documents, scale, c.window);
  EXPECT_LT(RelativeError(out, expected.detach()), 2e-6);
  EXPECT_LT(RelativeError(lse, expected_lse.detach()), 2e-6);
  EXPECT_LT(RelativeError(dq, grads[0]), 5e-6);
  EXPECT_LT(RelativeError(dk, grads[1]), 5e-6);
  EXPECT_LT(RelativeError(dv, grads[2]), 5e-6);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         testing::Values(Case{{1}, 1, 1, 4, 0}, Case{{17}, 4, 2, 8, 0},
                                         Case{{5, 1, 30}, 6, 3, 16, 0}, Case{{40, 9}, 4, 1, 8, 7},
                                         Case{{300, 270}, 2, 1, 8, 0},
                                         Case{{600}, 2, 2, 8, 100}, Case{{530}, 3, 1, 6, 300}));

TEST(AttentionTest, DocumentsDoNotSeeEachOther) {
  const Tensor q = Random({12, 2, 8}, 1), k = Random({12, 1, 8}, 2), v = Random({12, 1, 8}, 3);
  const std::vector<int64_t> lengths = {5, 7};
  const Tensor cu = at::tensor(std::vector<int32_t>{0, 5, 12}, at::kInt);
  const auto out = std::get<0>(ops::Attention(q, k, v, {cu, lengths}, 0.3, 0));
  Tensor k2 = k.clone(), v2 = v.clone();
  k2.narrow(0, 0, 5).add_(3);
  v2.narrow(0, 0, 5).add_(3);
  const auto changed = std::get<0>(ops::Attention(q, k2, v2, {cu, lengths}, 0.3, 0));
  EXPECT_TRUE(at::equal(out.narrow(0, 5, 7), changed.narrow(0, 5, 7)));
  EXPECT_FALSE(at::equal(out.narrow(0, 0, 5), changed.narrow(0, 0, 5)));
}

}  // namespace
}  // namespace sft::engine
