#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

// Holds DropoutAttention and its backward on `device` against the formula. Values that are the unit
// matrix show the probabilities that were kept, and so the mask.
inline void ExpectDropoutAttention(at::Device device, at::ScalarType type, double tolerance) {
  using at::Tensor;
  constexpr int64_t kTokens = 64, kHeads = 4, kKeyHeads = 2, kSize = 64;
  constexpr double kScale = 0.125;
  const ops::AttentionDropout dropout{.p = 0.25, .seed = 0x123456789abcdefULL};
  const std::vector<int64_t> lengths = {kTokens};
  const Tensor cu_seqlens = at::tensor({int64_t{0}, kTokens}, at::kLong).to(device, at::kInt);
  const ops::Documents documents{cu_seqlens, lengths};
  at::manual_seed(5);
  const auto random = [&](int64_t heads) {
    return at::randn({kTokens, heads, kSize}, at::kFloat).to(device, type);
  };
  const Tensor q = random(kHeads), k = random(kKeyHeads), v = random(kKeyHeads);
  const Tensor dout = random(kHeads);
  const Tensor unit = at::eye(kTokens, at::kFloat)
                          .unsqueeze(1)
                          .expand({kTokens, kKeyHeads, kSize})
                          .contiguous()
                          .to(device, type);
  Tensor kept = at::empty_like(q), out = at::empty_like(q), again = at::empty_like(q);
  ops::DropoutAttention(kept, q, k, unit, documents, kScale, 0, dropout);
  const Tensor lse = ops::DropoutAttention(out, q, k, v, documents, kScale, 0, dropout);
  ops::DropoutAttention(again, q, k, v, documents, kScale, 0, dropout);
  EXPECT_TRUE(at::equal(out, again)) << "one seed draws one mask";
  ops::DropoutAttention(again, q, k, v, documents, kScale, 0, {dropout.p, dropout.seed + 1});
  EXPECT_FALSE(at::equal(out, again)) << "another seed draws another";

  const auto by_head = [](const Tensor& x) {
    return x.cpu().to(at::kDouble).permute({1, 0, 2}).contiguous();
  };
  const int64_t group = kHeads / kKeyHeads;
  Tensor qd = by_head(q).set_requires_grad(true), kd = by_head(k).set_requires_grad(true);
  Tensor vd = by_head(v).set_requires_grad(true);
  const Tensor hidden = at::ones({kTokens, kTokens}, at::kBool).triu(1);
  const Tensor scores = at::matmul(qd, kd.repeat_interleave(group, 0).transpose(1, 2)) * kScale;
  const Tensor p = at::softmax(scores.masked_fill(hidden, -1e30), -1);
  const Tensor mask = by_head(kept).gt(0).to(at::kDouble) / (1.0 - dropout.p);
  // Only probabilities that are large enough to be told from 0 count.
  const Tensor seen = p.detach().gt(1e-3);
  const double share =
      1.0 - mask.gt(0).logical_and(seen).sum().item<double>() / seen.sum().item<double>();
  EXPECT_NEAR(share, dropout.p, 0.03);
  const Tensor expected = at::matmul(p * mask, vd.repeat_interleave(group, 0));
  const Tensor loss = (expected * by_head(dout)).sum();
  loss.backward();
  Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  ops::DropoutAttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, documents, kScale, 0, dropout);
  const auto error = [&](const Tensor& actual, const Tensor& wanted) {
    return ((by_head(actual) - wanted).norm() / wanted.norm()).item<double>();
  };
  EXPECT_LT(error(out, expected.detach()), tolerance);
  EXPECT_LT(error(dq, qd.grad()), tolerance);
  EXPECT_LT(error(dk, kd.grad()), tolerance);
  EXPECT_LT(error(dv, vd.grad()), tolerance);
}

}  // namespace sft::engine
