#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <vector>

#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

// Gradients of sum(y * dy) by autograd.
std::vector<Tensor> Gradients(const Tensor& y, const Tensor& dy,
                              const std::vector<Tensor>& inputs) {
  return torch::autograd::grad({y}, inputs, {dy});
}

// Rows [rows, width] of a wider buffer, all of which holds `value`.
struct Strided {
  Strided(int64_t rows, int64_t width, at::ScalarType type, double value = 77.0)
      : buffer(at::full({rows, width + 9}, value, type)), rows(buffer.narrow(1, 0, width)) {}
  explicit Strided(const Tensor& x) : Strided(x.size(0), x.size(1), x.scalar_type()) {
    rows.copy_(x);
  }
  // What lies beside the rows is as it was.
  bool GapIsUntouched() const {
    return (buffer.narrow(1, rows.size(1), 9) == 77.0).all().item<bool>();
  }
  Tensor buffer, rows;
};

class TypesTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::ScalarType type() const { return GetParam(); }
  // What the rounding of a result to the type may cost.
  double tolerance() const { return type() == at::kFloat ? 2e-6 : 4e-3; }
  Tensor Input(at::IntArrayRef shape, int seed) const { return Random(shape, seed).to(type()); }
};
INSTANTIATE_TEST_SUITE_P(Types, TypesTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         ::testing::PrintToStringParamName());

std::string NameOf(plan::NormKind kind) {
  constexpr const char* kNames[] = {"Rms", "RmsFp32", "RmsOnePlus"};
  return kNames[static_cast<int>(kind)];
}

// 1e-5 as epsilon.
class RmsNormTest : public ::testing::TestWithParam<plan::NormKind> {
 protected:
  ops::NormOptions options() const { return {1e-5, GetParam()}; }
  Tensor Scale(const Tensor& w) const {
    return GetParam() == plan::NormKind::kRmsOnePlus ? 1.0 + w : w;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, RmsNormTest,
                         ::testing::Values(plan::NormKind::kRms, plan::NormKind::kRmsFp32,
                                           plan::NormKind::kRmsOnePlus),
                         [](const auto& info) { return NameOf(info.param); });

TEST_P(RmsNormTest, EqualsThePlainFormulaAndItsAutograd) {
  for (int64_t hidden : {1, 7, 16, 33, 576}) {
    Tensor x = Random({15, hidden}, 1).set_requires_grad(true);
    Tensor w = Random({hidden}, 2).set_requires_grad(true);
    const Tensor expected = Scale(w) * (x * at::rsqrt(x.square().mean({-1}, true) + 1e-5));
    const Tensor dy = Random(x.sizes(), 3), residual = Random(x.sizes(), 4);
    const auto grads = Gradients(expected, dy, {x, w});
    const Strided source(x.detach());
    Strided y(15, hidden, at::kFloat), dx(15, hidden, at::kFloat), sum(15, hidden, at::kFloat);
    const Tensor rstd = ops::RmsNorm(y.rows, source.rows, w.detach(), options());
    const Tensor dw = ops::RmsNormBackward(dx.rows, dy, source.rows, w.detach(), rstd, GetParam(),
                                           Tensor(), true);
    ops::RmsNormBackward(sum.rows, Strided(dy).rows, source.rows, w.detach(), rstd, GetParam(),
                         Strided(residual).rows, false);
    Strided added(residual);
    EXPECT_TRUE(at::equal(
        ops::RmsNormAdd(added.rows, source.rows, w.detach(), added.rows, options()), rstd));
    EXPECT_LT(RelativeError(added.rows, residual + expected.detach()), 1e-6) << hidden;
    EXPECT_TRUE(added.GapIsUntouched());
    EXPECT_EQ(rstd.sizes(), at::IntArrayRef({15}));
    EXPECT_LT(RelativeError(y.rows, expected.detach()), 1e-6);
    EXPECT_LT(RelativeError(dx.rows, grads[0]), hidden == 1 ? 1e-2 : 2e-6) << hidden;
    EXPECT_LT(RelativeError(sum.rows, grads[0] + residual), 2e-6) << hidden;
    EXPECT_LT(RelativeError(dw, grads[1]), 1e-6);
    EXPECT_TRUE(y.GapIsUntouched() && dx.GapIsUntouched() && sum.GapIsUntouched()) << hidden;
  }
}

TEST_P(RmsNormTest, RoundsInTheOrderOfTransformersForBf16) {
  const Tensor x = Random({64, 96}, 4).to(at::kBFloat16);
  const Tensor w = Random({96}, 5).to(at::kBFloat16);
  const Tensor x32 = x.to(at::kFloat);
  const Tensor normed = x32 * at::rsqrt(x32.square().mean({-1}, true) + 1e-5);
  const Tensor expected = GetParam() == plan::NormKind::kRms
                              ? w * normed.to(at::kBFloat16)
                              : (Scale(w.to(at::kFloat)) * normed).to(at::kBFloat16);
  Tensor y = at::empty_like(x), sum = at::empty_like(x);
  ops::RmsNorm(y, x, w, options());
  ops::RmsNormAdd(sum, x, w, x, options());
  EXPECT_TRUE(at::equal(sum, x + y)) << "the norm is rounded before the sum";
  // rsqrt and the order of the sum may differ by an ulp of fp32, seldom one of bf16.
  EXPECT_LT((y != expected).sum().item<int64_t>(), 6144 / 100);
  EXPECT_LT(RelativeError(y, expected), 1e-3);
}

TEST_P(TypesTest, RmsNormBackwardAddsTheResidualBeforeItsOneRounding) {
  const Tensor x = Input({21, 70}, 1), w = Input({70}, 2), dy = Input({21, 70}, 3);
  const Tensor residual = Input({21, 70}, 4);
  Tensor y = at::empty_like(x), dx = at::empty_like(x);
  const Tensor rstd = ops::RmsNorm(y, x, w, 1e-6);
  ops::RmsNormBackward(dx, dy, x, w, rstd, plan::NormKind::kRms, residual, false);
  const auto floats = [](const Tensor& t) { return t.to(at::kFloat); };
  Tensor exact = at::empty({21, 70}, at::kFloat);
  ops::RmsNormBackward(exact, floats(dy), floats(x), floats(w), rstd, plan::NormKind::kRms,
                       floats(residual), false);
  EXPECT_TRUE(at::equal(dx, exact.to(type())));
}

TEST_P(TypesTest, RmsNormBackwardMayOverwriteItsGradientOrItsResidual) {
  const Tensor x = Input({21, 70}, 1), w = Input({70}, 2), dy = Input({21, 70}, 3);
  const Tensor residual = Input({21, 70}, 4);
  Tensor y = at::empty_like(x), apart = at::empty_like(x);
  const Tensor rstd = ops::RmsNorm(y, x, w, 1e-6);
  const Tensor dw =
      ops::RmsNormBackward(apart, dy, x, w, rstd, plan::NormKind::kRms, residual, true);
  Strided over_dy(dy), over_residual(residual);
  EXPECT_TRUE(at::equal(ops::RmsNormBackward(over_dy.rows, over_dy.rows, x, w, rstd,
                                             plan::NormKind::kRms, residual, true),
                        dw));
  EXPECT_TRUE(at::equal(over_dy.rows, apart));
  EXPECT_TRUE(at::equal(ops::RmsNormBackward(over_residual.rows, dy, x, w, rstd,
                                             plan::NormKind::kRms, over_residual.rows, true),
                        dw));
  EXPECT_TRUE(at::equal(over_residual.rows, apart));
  EXPECT_TRUE(over_dy.GapIsUntouched() && over_residual.GapIsUntouched());
}

TEST(RmsNormOfOneKindTest, WithoutWeightGradientReturnsNone) {
  const Tensor x = Random({4, 8}, 1);
  const Tensor w = at::ones({8});
  Tensor y = at::empty_like(x);
  const Tensor rstd = ops::RmsNorm(y, x, w, 1e-5);
  EXPECT_EQ(ops::RmsNormBackward(y, y, x, w, rstd, plan::NormKind::kRms, Tensor(), false).numel(),
            0);
}

TEST(RmsNormOfOneKindTest, RefusesWhatDoesNotFit) {
  const Tensor x = Random({4, 8}, 1), w = at::ones({8});
  Tensor short_rows = at::empty({4, 7}), other_type = at::empty({4, 8}, at::kBFloat16);
  Tensor columns = at::empty({8, 4}).t();
  EXPECT_THROW(ops::RmsNorm(short_rows, x, w, 1e-5), c10::Error);
  EXPECT_THROW(ops::RmsNorm(other_type, x, w, 1e-5), c10::Error);
  EXPECT_THROW(ops::RmsNorm(columns, x, w, 1e-5), c10::Error);
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

// A fused projection of 3 query heads and 2 key (and value) heads.
struct FusedHeads {
  static constexpr int64_t kTokens = 150, kHeads = 3, kKeyHeads = 2;
  FusedHeads(int64_t head_dim, at::ScalarType type)
      : size(head_dim),
        qkv(Strided(Random({kTokens, (kHeads + 2 * kKeyHeads) * size}, 1).to(type))),
        q_weight(Random({size}, 2).to(type)),
        k_weight(Random({size}, 3).to(type)) {
    const Tensor angles = Random({kTokens, size / 2}, 4);
    cos = angles.cos();
    sin = angles.sin();
  }
  // The heads of q (or k) in rows like qkv's.
  Tensor Queries(const Tensor& rows) const { return Heads(rows, 0, kHeads); }
  Tensor Keys(const Tensor& rows) const { return Heads(rows, kHeads, kKeyHeads); }
  Tensor Heads(const Tensor& rows, int64_t first, int64_t count) const {
    return rows.narrow(1, first * size, count * size).unflatten(1, {count, size});
  }
  int64_t size;
  Strided qkv;
  Tensor q_weight, k_weight, cos, sin;
};

TEST_P(TypesTest, NormRopeIsRmsNormThenRopeBitForBit) {
  for (const int64_t size : {2, 10, 64, 96, 128}) {
    const FusedHeads f(size, type());
    const auto separately = [&](const Tensor& heads, const Tensor& weight) {
      const Tensor x = heads.contiguous().view({-1, size});
      Tensor y = at::empty_like(x);
      ops::RmsNorm(y, x, weight, 1e-6);
      Tensor result = y.view(heads.sizes());
      ops::Rope(result, f.cos, f.sin, false);
      return result;
    };
    Strided q_rows(f.kTokens, f.kHeads * size, type()),
        k_rows(f.kTokens, f.kKeyHeads * size, type());
    Tensor q = q_rows.rows.unflatten(1, {f.kHeads, size});
    Tensor k = k_rows.rows.unflatten(1, {f.kKeyHeads, size});
    ops::NormRope(q, k, f.qkv.rows, f.q_weight, f.k_weight, f.cos, f.sin, 1e-6);
    EXPECT_TRUE(at::equal(q, separately(f.Queries(f.qkv.rows), f.q_weight))) << size;
    EXPECT_TRUE(at::equal(k, separately(f.Keys(f.qkv.rows), f.k_weight))) << size;
    EXPECT_TRUE(q_rows.GapIsUntouched() && k_rows.GapIsUntouched()) << size;
  }
}

TEST_P(TypesTest, NormRopeBackwardEqualsAutogradAndLeavesTheValueHeads) {
  for (const int64_t size : {10, 64, 128}) {
    const FusedHeads f(size, type());
    const Strided given(Input(f.qkv.rows.sizes(), 9));
    const auto expect = [&](const Tensor& x, const Tensor& weight, const Tensor& dy) {
      Tensor leaf = x.to(at::kDouble).contiguous().set_requires_grad(true);
      Tensor w = weight.to(at::kDouble).set_requires_grad(true);
      const Tensor normed = w * (leaf * at::rsqrt(leaf.square().mean({-1}, true) + 1e-6));
      const Tensor low = normed.narrow(2, 0, size / 2), high = normed.narrow(2, size / 2, size / 2);
      const Tensor c = f.cos.to(at::kDouble).unsqueeze(1), s = f.sin.to(at::kDouble).unsqueeze(1);
      const Tensor y = at::cat({low * c - high * s, high * c + low * s}, 2);
      return Gradients(y, dy.to(at::kDouble), {leaf, w});
    };
    const auto q = expect(f.Queries(f.qkv.rows), f.q_weight, f.Queries(given.rows));
    const auto k = expect(f.Keys(f.qkv.rows), f.k_weight, f.Keys(given.rows));
    const auto run = [&](Strided& dqkv, bool weights) {
      return ops::NormRopeBackward(dqkv.rows, f.qkv.rows, f.q_weight, f.k_weight, f.cos, f.sin,
                                   f.kHeads, f.kKeyHeads, 1e-6, weights);
    };
    Strided dqkv(given.rows), again(given.rows);
    const auto [dq_weight, dk_weight] = run(dqkv, true);
    EXPECT_LT(RelativeError(f.Queries(dqkv.rows), q[0]), tolerance()) << size;
    EXPECT_LT(RelativeError(f.Keys(dqkv.rows), k[0]), tolerance()) << size;
    EXPECT_LT(RelativeError(dq_weight, q[1]), tolerance()) << size;
    EXPECT_LT(RelativeError(dk_weight, k[1]), tolerance()) << size;
    const int64_t first_value = f.kHeads + f.kKeyHeads;
    EXPECT_TRUE(at::equal(f.Heads(dqkv.rows, first_value, f.kKeyHeads),
                          f.Heads(given.rows, first_value, f.kKeyHeads)));
    EXPECT_TRUE(dqkv.GapIsUntouched());
    const auto [none_q, none_k] = run(again, false);
    EXPECT_EQ(none_q.numel() + none_k.numel(), 0);
    EXPECT_TRUE(at::equal(again.rows, dqkv.rows));
  }
}

TEST(NormRopeTest, RefusesAProjectionThatHasFewerHeads) {
  const FusedHeads f(8, at::kFloat);
  // Behind those of the queries and keys there are only the values'.
  Tensor q = at::empty({f.kTokens, f.kHeads + f.kKeyHeads + 1, 8}),
         k = at::empty({f.kTokens, f.kKeyHeads, 8});
  EXPECT_THROW(ops::NormRope(q, k, f.qkv.rows, f.q_weight, f.k_weight, f.cos, f.sin, 1e-6),
               c10::Error);
}

TEST(LayerNormTest, EqualsLibTorchAndItsAutograd) {
  for (const int64_t width : {1, 7, 33, 1024}) {
    Tensor x = (Random({15, width}, 1) + 3.0).set_requires_grad(true);
    Tensor w = Random({width}, 2).set_requires_grad(true);
    Tensor b = Random({width}, 3).set_requires_grad(true);
    const Tensor dy = Random({15, width}, 4), residual = Random({15, width}, 5);
    const Tensor expected = at::layer_norm(x, {width}, w, b, 1e-5);
    const auto grads = Gradients(expected, dy, {x, w, b});
    const Strided source(x.detach());
    Strided y(15, width, at::kFloat), over_residual(residual), over_dy(dy);
    const Tensor statistics = ops::LayerNorm(y.rows, source.rows, w.detach(), b.detach(), 1e-5);
    Tensor sums = at::empty({width}), none;
    const Tensor both = ops::LayerNormBackward(over_dy.rows, over_dy.rows, source.rows, w.detach(),
                                               statistics, Tensor(), true, sums);
    EXPECT_TRUE(at::equal(sums, at::sum(over_dy.rows, {0})));
    EXPECT_EQ(ops::LayerNormBackward(over_residual.rows, dy, source.rows, w.detach(), statistics,
                                     over_residual.rows, false, none)
                  .size(1),
              0);
    EXPECT_LT(RelativeError(y.rows, expected.detach()), 2e-6) << width;
    if (width > 1) {
      EXPECT_LT(RelativeError(over_dy.rows, grads[0]), 2e-5) << width;
      EXPECT_LT(RelativeError(both[0], grads[1]), 2e-5) << width;
    }
    EXPECT_LT(RelativeError(over_residual.rows, grads[0] + residual), 2e-5) << width;
    EXPECT_LT(RelativeError(both[1], grads[2]), 2e-6) << width;
    EXPECT_TRUE(y.GapIsUntouched() && over_dy.GapIsUntouched() && over_residual.GapIsUntouched());
  }
}

class GluTest : public ::testing::TestWithParam<plan::ActivationKind> {
 protected:
  bool silu() const { return GetParam() == plan::ActivationKind::kSilu; }
  Tensor Activated(const Tensor& x) const { return silu() ? at::silu(x) : at::gelu(x, "tanh"); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, GluTest,
                         ::testing::Values(plan::ActivationKind::kSilu,
                                           plan::ActivationKind::kGeluTanh),
                         [](const auto& info) {
                           return info.param == plan::ActivationKind::kSilu ? "Silu" : "GeluTanh";
                         });

TEST_P(GluTest, EqualsAutograd) {
  for (const int64_t width : {1, 50, 128}) {
    Tensor gate = Random({13, width}, 8).set_requires_grad(true);
    Tensor up = Random({13, width}, 9).set_requires_grad(true);
    const Tensor expected = Activated(gate) * up;
    const Tensor dy = Random({13, width}, 10);
    const auto grads = Gradients(expected, dy, {gate, up});
    Strided gate_up(at::cat({gate.detach(), up.detach()}, 1)), out(13, width, at::kFloat);
    Strided gradient(13, 2 * width, at::kFloat);
    ops::Glu(out.rows, gate_up.rows, GetParam());
    ops::GluBackward(gradient.rows, Strided(dy).rows, gate_up.rows, GetParam());
    EXPECT_LT(RelativeError(out.rows, expected.detach()), 1e-6);
    EXPECT_LT(RelativeError(gradient.rows, at::cat({grads[0], grads[1]}, 1)), 1e-6);
    ops::GluBackward(gate_up.rows, dy, gate_up.rows, GetParam());
    EXPECT_TRUE(at::equal(gate_up.rows, gradient.rows)) << "in the place of gate and up";
    EXPECT_TRUE(out.GapIsUntouched() && gradient.GapIsUntouched() && gate_up.GapIsUntouched());
  }
}

TEST_P(GluTest, WithoutAGateItIsTheActivation) {
  for (const int64_t width : {1, 50, 128}) {
    Tensor x = Random({13, width}, 8).set_requires_grad(true);
    const Tensor expected = Activated(x), dy = Random({13, width}, 9);
    const auto grads = Gradients(expected, dy, {x});
    Strided out(13, width, at::kFloat), rows(x.detach());
    ops::Activate(out.rows, rows.rows, GetParam());
    Tensor sums = at::empty({rows.rows.size(1)});
    ops::ActivateBackward(rows.rows, Strided(dy).rows, rows.rows, GetParam(), sums);
    EXPECT_TRUE(at::equal(sums, at::sum(rows.rows, {0}, false, at::kFloat)));
    EXPECT_LT(RelativeError(out.rows, expected.detach()), 1e-6);
    EXPECT_LT(RelativeError(rows.rows, grads[0]), 1e-6);
    EXPECT_TRUE(out.GapIsUntouched() && rows.GapIsUntouched());
  }
}

// y = act(gate + s xa_g B_g^T) * ...: the gradients that autograd gives the adapters about h, with
// all else held.
TEST_P(GluTest, TheOnePassBackwardGivesTheGradientsOfTheAdaptersToo) {
  const int64_t tokens = 13, width = 50, rank = 3;
  const double scale = 0.5;
  const Tensor base = Random({tokens, 2 * width}, 1), xa = Random({tokens, 2 * rank}, 2);
  Tensor xa_in = xa.clone().set_requires_grad(true);
  Tensor b_gate = Random({width, rank}, 3).set_requires_grad(true);
  Tensor b_up = Random({width, rank}, 4).set_requires_grad(true);
  Tensor a_down = Random({rank, width}, 5).set_requires_grad(true);
  const Tensor gate =
      base.narrow(1, 0, width) + scale * xa_in.narrow(1, 0, rank).matmul(b_gate.t());
  const Tensor up =
      base.narrow(1, width, width) + scale * xa_in.narrow(1, rank, rank).matmul(b_up.t());
  const Tensor h = Activated(gate) * up;
  const Tensor dh = Random({tokens, width}, 6), dha = Random({tokens, rank}, 7);
  // dy reaches h through down's weight (dh) and, held apart here, through its first factor.
  const auto grads = Gradients(h, dh, {xa_in, b_gate, b_up});
  const Tensor ha = Activated(gate).mul(up).detach().matmul(a_down.t());
  const auto of_down = Gradients(ha, dha, {a_down});
  Strided rows(at::cat({gate.detach(), up.detach()}, 1)), plain(tokens, 2 * width, at::kFloat);
  ops::GluBackward(plain.rows, dh, rows.rows, GetParam());
  const ops::GluFactors factors{.xa = xa,
                                .b_gate = b_gate.detach(),
                                .b_up = b_up.detach(),
                                .dxa_down = dha,
                                .db_gate = at::ones({width, rank}),
                                .db_up = at::ones({width, rank}),
                                .da_down = at::ones({rank, width}),
                                .scale = scale,
                                .kind = GetParam()};
  ASSERT_TRUE(ops::HasGluFactors(rows.rows, rank));
  Tensor dxa = at::empty({rows.rows.size(0), 2 * factors.b_gate.size(1)});
  ops::GluFactorsBackward(rows.rows, dxa, Strided(dh).rows, factors);
  EXPECT_LT(RelativeError(rows.rows, plain.rows), 1e-6);
  EXPECT_LT(RelativeError(dxa, grads[0]), 1e-6);
  EXPECT_LT(RelativeError(factors.db_gate, grads[1] + 1), 1e-6) << "added to what is there";
  EXPECT_LT(RelativeError(factors.db_up, grads[2] + 1), 1e-6);
  EXPECT_LT(RelativeError(factors.da_down, of_down[0] + 1), 1e-6);
  EXPECT_TRUE(rows.GapIsUntouched());
}

TEST_P(TypesTest, PlaceFactorsPutsEachMemberInItsRowsAndRank) {
  // Two of three members of a fused weight, which leave rows 5 to 7 to none.
  const int64_t rows = 12, columns = 6, rank = 5;
  const std::vector<int64_t> first_row = {0, 8};
  const std::vector<Tensor> a = {Input({2, columns}, 1), Strided(Input({3, columns}, 2)).rows};
  const std::vector<Tensor> b = {Strided(Input({5, 2}, 3)).rows, Input({4, 3}, 4)};
  Tensor buffer = at::full({rows + rank, 20}, 77.0, type());
  Tensor expected = buffer.clone();
  expected.narrow(0, 0, rows).narrow(1, columns, rank).zero_();
  int64_t rank_before = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t r = a[i].size(0);
    expected.narrow(0, first_row[i], b[i].size(0))
        .narrow(1, columns + rank_before, r)
        .copy_(b[i].to(at::kFloat) * 1.5);
    expected.narrow(0, rows + rank_before, r).narrow(1, 0, columns).copy_(a[i]);
    rank_before += r;
  }
  Tensor matrix = buffer.narrow(1, 0, columns + rank + 1);
  ops::PlaceFactors(matrix, a, b, first_row, 1.5);
  EXPECT_TRUE(at::equal(buffer, expected));
}

TEST(PlaceFactorsTest, RefusesMembersOutsideTheWeight) {
  Tensor matrix = at::empty({10, 8});
  const std::vector<Tensor> a = {at::ones({2, 6})}, b = {at::ones({5, 2})};
  EXPECT_THROW(ops::PlaceFactors(matrix, a, b, {4}, 1.0), c10::Error);
  EXPECT_THROW(ops::PlaceFactors(matrix, a, {at::ones({5, 3})}, {0}, 1.0), c10::Error);
  Tensor narrow = at::empty({10, 7});
  EXPECT_THROW(ops::PlaceFactors(narrow, a, b, {0}, 1.0), c10::Error);
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
  Strided apart(logits);
  EXPECT_NEAR(ops::CrossEntropy(apart.rows, targets, true).item<float>(), expected.item<float>(),
              1e-3);
  EXPECT_TRUE(at::equal(apart.rows, work) && apart.GapIsUntouched());
}

TEST_P(TypesTest, ABiasIsAddedToEachRow) {
  const Tensor y = Input({21, 70}, 1), bias = Input({70}, 2);
  Strided sum(y);
  ops::AddBias(sum.rows, bias);
  EXPECT_TRUE(at::equal(sum.rows, y + bias) && sum.GapIsUntouched());
}

TEST_P(TypesTest, AProductAddsABiasWithAndWithoutAnAddend) {
  const Tensor a = Input({21, 16}, 1), b = Input({16, 70}, 2), bias = Input({70}, 3);
  const Tensor addend = Input({21, 70}, 4);
  Tensor product = at::mm(a, b);
  Strided y(21, 70, a.scalar_type());
  ops::GemmAdd(y.rows, a, b, Tensor(), bias);
  EXPECT_TRUE(at::equal(y.rows, product + bias) && y.GapIsUntouched());
  ops::GemmAdd(y.rows, a, b, addend, bias);
  EXPECT_TRUE(at::equal(y.rows, at::addmm(addend, a, b) + bias) && y.GapIsUntouched());
  EXPECT_THROW(ops::GemmAdd(y.rows, a, b, addend, bias.narrow(0, 0, 69)), c10::Error);
}

TEST_P(TypesTest, ColumnsAreSummedInFp32) {
  const Tensor x = Input({21, 70}, 1);
  Tensor sums = at::empty({70});
  ops::ColumnSums(sums, Strided(x).rows);
  EXPECT_LT(RelativeError(sums, at::sum(x.to(at::kDouble), {0})), 1e-6);
  Tensor short_by_one = at::empty({69});
  EXPECT_THROW(ops::ColumnSums(short_by_one, x), c10::Error);
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
