#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

// Products of groups of rows and the rows of experts (operations.def), on the CPU.

namespace sft::engine {
namespace {

using at::Tensor;

// Groups of 3, 0, 5 and 1 rows, behind two rows and before one that are nobody's.
const std::vector<int> kBegins = {2, 5, 5, 10, 11};
constexpr int64_t kRows = 12, kGroups = 4, kOutputs = 6, kDepth = 7, kMore = 2;

ops::RowGroups Groups() { return ops::RowGroups(at::tensor(kBegins, at::kInt)); }
Tensor Of(const Tensor& rows, int64_t g) { return rows.slice(0, kBegins[g], kBegins[g + 1]); }

TEST(ExpertsOpsTest, EachGroupIsMultipliedByItsOwnMatrix) {
  const Tensor a = Random({kRows, kDepth}, 1), more_a = Random({kRows, kMore}, 2);
  const Tensor bias = Random({kGroups, kOutputs}, 3);
  for (const bool across : {false, true}) {
    Tensor b = Random({kGroups, kDepth, kOutputs}, 4);
    if (!across) b = b.transpose(1, 2).contiguous().transpose(1, 2);
    const Tensor more_b = Random({kGroups, kMore, kOutputs}, 5);
    Tensor scaled = at::full({kRows, kOutputs}, 9.0), added = scaled.clone();
    ops::GroupedGemm(scaled, a, b, {}, 0.5, Groups());
    ops::GroupedGemm(added, a, b, {more_a, more_b, bias}, 1.0, Groups());
    for (int64_t g = 0; g < kGroups; ++g) {
      const Tensor product = at::mm(Of(a, g), b[g]);
      EXPECT_TRUE(at::allclose(Of(scaled, g), product * 0.5, 1e-5, 1e-6));
      const Tensor sum = product + at::mm(Of(more_a, g), more_b[g]) + bias[g];
      EXPECT_TRUE(at::allclose(Of(added, g), sum, 1e-5, 1e-6));
    }
    for (const int64_t row : {0, 1, 11}) EXPECT_TRUE(scaled[row].eq(9.0).all().item<bool>());
  }
}

// Rows in FP8, and what they stand for.
struct RowsInFp8 {
  explicit RowsInFp8(const Tensor& x)
      : rows{at::empty(x.sizes(), at::kFloat8_e4m3fn), at::empty({x.size(0)})} {
    ops::Fp8Quantize(rows.values, rows.scale, x);
    exact = rows.values.to(at::kFloat).mul_(rows.scale.unsqueeze(1));
  }
  ops::Fp8Rows rows;
  Tensor exact;
};

TEST(ExpertsOpsTest, EachGroupIsMultipliedInFp8ByItsOwnMatrix) {
  const RowsInFp8 a(Random({kRows, kDepth}, 1));
  const RowsInFp8 b(Random({kGroups * kOutputs, kDepth}, 2));
  const Tensor more_a = Random({kRows, kMore}, 3), more_b = Random({kGroups, kMore, kOutputs}, 4);
  const Tensor bias = Random({kGroups, kOutputs}, 5);
  const Tensor stack = b.rows.values.view({kGroups, kOutputs, kDepth});
  for (const bool fast : {false, true}) {
    Tensor plain = at::full({kRows, kOutputs}, 9.0), added = plain.clone();
    ops::GroupedFp8Gemm(plain, a.rows, stack, b.rows.scale, {}, fast, Groups());
    ops::GroupedFp8Gemm(added, a.rows, stack, b.rows.scale, {more_a, more_b, bias}, fast, Groups());
    for (int64_t g = 0; g < kGroups; ++g) {
      const Tensor matrix = b.exact.narrow(0, g * kOutputs, kOutputs);
      const Tensor product = at::mm(Of(a.exact, g), matrix.t());
      EXPECT_TRUE(at::allclose(Of(plain, g), product, 1e-5, 1e-6));
      const Tensor sum = product + at::mm(Of(more_a, g), more_b[g]) + bias[g];
      EXPECT_TRUE(at::allclose(Of(added, g), sum, 1e-5, 1e-6));
    }
    for (const int64_t row : {0, 1, 11}) EXPECT_TRUE(plain[row].eq(9.0).all().item<bool>());
  }
  Tensor out = at::empty({kRows, kOutputs});
  EXPECT_THROW(
      ops::GroupedFp8Gemm(out, a.rows, stack.narrow(2, 0, 3), b.rows.scale, {}, false, Groups()),
      c10::Error);
  EXPECT_THROW(ops::GroupedFp8Gemm(out, a.rows, stack, b.rows.scale.narrow(0, 0, kOutputs), {},
                                   false, Groups()),
               c10::Error);
}

TEST(ExpertsOpsTest, TheGradientOfAGateIsWrittenInFp8Too) {
  const Tensor gate_up = Random({4, 6}, 1), dy = Random({4, 3}, 2), weights = Random({4}, 3);
  const RowsInFp8 nothing(at::zeros({4, 6}));
  for (const auto kind : {plan::ActivationKind::kSilu, plan::ActivationKind::kClampedSwiGlu}) {
    Tensor actual = gate_up.clone();
    ops::WeighedGluBackward(actual, dy, actual, weights, kind, nothing.rows);
    const RowsInFp8 expected(actual);
    EXPECT_TRUE(
        at::equal(nothing.rows.values.view(at::kByte), expected.rows.values.view(at::kByte)));
    EXPECT_TRUE(at::equal(nothing.rows.scale, expected.rows.scale));
  }
}

TEST(ExpertsOpsTest, GradientsAreSumsOverTheRowsOfAGroup) {
  const Tensor a = Random({kRows, kDepth}, 1), b = Random({kRows, kOutputs}, 2);
  for (const double beta : {0.0, 1.0}) {
    const Tensor before = Random({kGroups, kDepth, kOutputs}, 3);
    Tensor sums = before.clone();
    ops::GroupedGradient(sums, a, b, 0.5, beta, Groups());
    for (int64_t g = 0; g < kGroups; ++g) {
      const Tensor expected = at::mm(Of(a, g).t(), Of(b, g)) * 0.5 + before[g] * beta;
      EXPECT_TRUE(at::allclose(sums[g], expected, 1e-5, 1e-6)) << g << " " << beta;
    }
  }
}

TEST(ExpertsOpsTest, RowsAreTakenAndCombinedInTheOrderOfTheChoices) {
  const Tensor x = Random({3, 5}, 1), of = at::tensor({2, 0, 2, 1, 1, 0}, at::kLong);
  Tensor rows = at::empty({6, 5});
  ops::TakeRows(rows, x, of);
  EXPECT_TRUE(at::equal(rows, x.index_select(0, of)));

  const Tensor places = at::tensor({1, 5, 3, 4, 0, 2}, at::kLong).view({3, 2});
  const Tensor weights = Random({3, 2}, 2), addend = Random({3, 5}, 3);
  Tensor y = at::empty({3, 5}), plain = at::empty({3, 5});
  ops::CombineRows(y, rows, places, weights, addend);
  ops::CombineRows(plain, rows, places, {}, {});
  for (int64_t t = 0; t < 3; ++t) {
    const Tensor first = rows[places[t][0].item<int64_t>()];
    const Tensor second = rows[places[t][1].item<int64_t>()];
    EXPECT_TRUE(at::equal(y[t], first * weights[t][0] + second * weights[t][1] + addend[t]));
    EXPECT_TRUE(at::equal(plain[t], first + second));
  }
}

TEST(ExpertsOpsTest, TheGradientOfAGateIsWeighedByRow) {
  const Tensor gate_up = Random({4, 6}, 1), dy = Random({4, 3}, 2), weights = Random({4}, 3);
  for (const auto kind : {plan::ActivationKind::kSilu, plan::ActivationKind::kClampedSwiGlu}) {
    Tensor h = at::empty({4, 3}), expected = at::empty({4, 6}), actual = gate_up.clone();
    ops::Glu(h, gate_up, kind);
    ops::GluBackward(expected, dy * weights.unsqueeze(1), gate_up, kind);
    const Tensor products = ops::WeighedGluBackward(actual, dy, actual, weights, kind);
    EXPECT_TRUE(at::allclose(products, (dy * h).sum(1)));
    EXPECT_TRUE(at::equal(actual, expected));
  }
}

TEST(ExpertsOpsTest, WrongShapesAreRefused) {
  const Tensor a = Random({kRows, kDepth}, 1);
  Tensor out = at::empty({kRows, kOutputs});
  const Tensor b = Random({kGroups, kDepth, kOutputs}, 2);
  EXPECT_THROW(ops::GroupedGemm(out, a, b.narrow(0, 0, 3), {}, 1.0, Groups()), c10::Error);
  EXPECT_THROW(ops::GroupedGemm(out, a, b.narrow(1, 0, 3), {}, 1.0, Groups()), c10::Error);
  EXPECT_THROW(ops::GroupedGemm(out, a, b, {a, b, {}}, 0.5, Groups()), c10::Error);
  EXPECT_THROW(ops::GroupedGemm(out, a, b, {}, 1.0, ops::RowGroups(at::tensor(kBegins, at::kLong))),
               c10::Error);
  Tensor sums = at::zeros({kGroups, kOutputs, kDepth});
  EXPECT_THROW(ops::GroupedGradient(sums, a, out, 1.0, 1.0, Groups()), c10::Error);
  EXPECT_THROW(ops::TakeRows(out, a, at::zeros({kRows}, at::kInt)), c10::Error);
}

}  // namespace
}  // namespace sft::engine
