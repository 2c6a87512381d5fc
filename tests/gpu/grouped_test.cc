#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/gpu/grouped_data.h"
#include "worker/engine/kernels/ops.h"

// Products of groups of rows, and what stands around them in a mixture of experts, beside the CPU.

namespace sft::engine {
namespace {

using at::Tensor;

const GroupedShape kGroupedShapes[] = {
    {{5}, 8, 8, 8},
    {{0, 1, 63, 64, 65, 0, 128, 129, 300, 0}, 72, 200, 16},
    {{127, 0, 255, 2100, 1}, 264, 320, 24},
    {{700, 3, 0, 513}, 1536, 520, 16},
    {{260, 140}, 2880, 2880, 64},
    {std::vector<int>(130, 9), 512, 136, 80},
};

class GroupedTest : public GpuTest, public ::testing::WithParamInterface<GroupedShape> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    shape_ = GetParam();
    host_ = ops::RowGroups(shape_.begins());
    groups_ = ops::RowGroups(ToGpu(shape_.begins()));
    a_ = RoundedNormal({shape_.all_rows(), shape_.depth}, 1);
    more_ = RoundedNormal({shape_.all_rows(), shape_.rank}, 3);
    bias_ = RoundedNormal({shape_.groups(), shape_.outputs}, 5);
  }
  // [G, depth, outputs], dense along the outputs where `across`.
  Tensor Matrices(int64_t depth, bool across, uint64_t seed) const {
    if (across) return RoundedNormal({shape_.groups(), depth, shape_.outputs}, seed);
    return RoundedNormal({shape_.groups(), shape_.outputs, depth}, seed).transpose(1, 2);
  }
  Tensor Results(at::ScalarType type) const {
    return at::full({shape_.all_rows(), shape_.outputs}, 7.0, type);
  }

  GroupedShape shape_;
  ops::RowGroups host_, groups_;
  Tensor a_, more_, bias_;
};

TEST_P(GroupedTest, ProductsAreThoseOfTheCpu) {
  for (const bool across : {false, true}) {
    const Tensor b = Matrices(shape_.depth, across, 2);
    Tensor expected = Results(at::kFloat), actual = ToGpu(Results(at::kBFloat16));
    ops::GroupedGemm(expected, a_, b, {}, 0.5, host_);
    ops::GroupedGemm(actual, InBf16OnGpu(a_), InBf16OnGpu(b), {}, 0.5, groups_);
    EXPECT_LT(RelativeError(actual, expected), 0.003) << across;
    Tensor again = ToGpu(Results(at::kBFloat16));
    ops::GroupedGemm(again, InBf16OnGpu(a_), InBf16OnGpu(b), {}, 0.5, groups_);
    EXPECT_TRUE(SameBits(again, actual));
  }
}

TEST_P(GroupedTest, AddASecondProductAndABias) {
  for (const bool across : {false, true}) {
    const Tensor b = Matrices(shape_.depth, across, 2);
    const Tensor more_b = Matrices(shape_.rank, across, 4);
    for (const bool biased : {false, true}) {
      Tensor expected = Results(at::kFloat), actual = ToGpu(Results(at::kBFloat16));
      ops::GroupedGemm(expected, a_, b, {more_, more_b, biased ? bias_ : Tensor()}, 1.0, host_);
      ops::GroupedGemm(
          actual, InBf16OnGpu(a_), InBf16OnGpu(b),
          {InBf16OnGpu(more_), InBf16OnGpu(more_b), biased ? InBf16OnGpu(bias_) : Tensor()}, 1.0,
          groups_);
      EXPECT_LT(RelativeError(actual, expected), 0.003) << across << biased;
    }
  }
}

TEST_P(GroupedTest, RowsOfNoGroupStayAsTheyAre) {
  Tensor out = ToGpu(Results(at::kBFloat16));
  ops::GroupedGemm(out, InBf16OnGpu(a_), InBf16OnGpu(Matrices(shape_.depth, false, 2)), {}, 1.0,
                   groups_);
  EXPECT_TRUE(out.narrow(0, 0, 3).eq(7.0).all().item<bool>());
  EXPECT_TRUE(out.narrow(0, shape_.all_rows() - 5, 5).eq(7.0).all().item<bool>());
}

// What generation relies on: a row alone in its group has the bits that it has among others.
TEST_P(GroupedTest, ARowHasItsBitsWhateverStandsBesideIt) {
  const Tensor b = InBf16OnGpu(Matrices(shape_.depth, false, 2));
  const Tensor a = InBf16OnGpu(a_), bias = InBf16OnGpu(bias_);
  Tensor all = ToGpu(Results(at::kBFloat16));
  ops::GroupedGemm(all, a, b, {.bias = bias}, 1.0, groups_);
  const std::vector<int32_t>& begins = host_.OnHost();
  for (int64_t g = 0; g < shape_.groups(); ++g) {
    if (shape_.rows[g] == 0) continue;
    const int64_t row = begins[g + 1] - 1;
    std::vector<int> borders(g + 1, 0);
    borders.resize(shape_.groups() + 1, 1);
    Tensor alone = ToGpu(at::zeros({1, shape_.outputs}, at::kBFloat16));
    ops::GroupedGemm(alone, a.narrow(0, row, 1), b, {.bias = bias}, 1.0,
                     ops::RowGroups(ToGpu(at::tensor(borders, at::kInt))));
    EXPECT_TRUE(SameBits(alone, all.narrow(0, row, 1))) << g;
  }
}

TEST_P(GroupedTest, GradientsAreThoseOfTheCpu) {
  const Tensor thin = more_;
  for (const bool thin_first : {false, true}) {
    const Tensor& x = thin_first ? thin : a_;
    const Tensor& y = thin_first ? a_ : thin;
    for (const double beta : {0.0, 1.0}) {
      Tensor expected = RoundedNormal({shape_.groups(), x.size(1), y.size(1)}, 6);
      Tensor actual = ToGpu(expected), rounded = InBf16OnGpu(expected);
      ops::GroupedGradient(expected, x, y, 0.25, beta, host_);
      ops::GroupedGradient(actual, InBf16OnGpu(x), InBf16OnGpu(y), 0.25, beta, groups_);
      ops::GroupedGradient(rounded, InBf16OnGpu(x), InBf16OnGpu(y), 0.25, beta, groups_);
      EXPECT_LT(RelativeError(actual, expected), 1e-5) << thin_first << beta;
      EXPECT_LT(RelativeError(rounded, expected), 0.003) << thin_first << beta;
    }
  }
}

// A gradient takes nothing of the rows behind its group, not even what is no number.
TEST_P(GroupedTest, GradientsReadNoRowsOfNoGroup) {
  Tensor a = InBf16OnGpu(a_), thin = InBf16OnGpu(more_);
  a.narrow(0, shape_.all_rows() - 5, 5).fill_(1e30);
  thin.narrow(0, shape_.all_rows() - 5, 5).fill_(std::numeric_limits<double>::quiet_NaN());
  Tensor sums = ToGpu(at::zeros({shape_.groups(), shape_.depth, shape_.rank}, at::kFloat));
  ops::GroupedGradient(sums, a, thin, 1.0, 1.0, groups_);
  EXPECT_TRUE(sums.isfinite().all().item<bool>());
}

TEST_P(GroupedTest, Fp32GoesGroupByGroup) {
  const Tensor b = Matrices(shape_.depth, false, 2), more_b = Matrices(shape_.rank, false, 4);
  Tensor expected = Results(at::kFloat), actual = ToGpu(expected);
  ops::GroupedGemm(expected, a_, b, {more_, more_b, bias_}, 1.0, host_);
  ops::GroupedGemm(actual, ToGpu(a_), ToGpu(b), {ToGpu(more_), ToGpu(more_b), ToGpu(bias_)}, 1.0,
                   groups_);
  EXPECT_LT(RelativeError(actual, expected), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Shapes, GroupedTest, ::testing::ValuesIn(kGroupedShapes));

class ExpertRowsTest : public GpuTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  static constexpr int64_t kTokens = 37, kChosen = 3;
  // A routed row for each place, in another order.
  static Tensor Places() {
    const Tensor all = at::arange(kTokens * kChosen, at::kLong);
    return all.mul(50).remainder(kTokens * kChosen).view({kTokens, kChosen});
  }
};

TEST_P(ExpertRowsTest, TakesRows) {
  const int64_t width = GetParam();
  const Tensor x = Normal({kTokens, width}, 1), of = Places().reshape({-1}).remainder(kTokens);
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    Tensor out = ToGpu(at::zeros({of.numel(), width}, type));
    ops::TakeRows(out, ToGpu(x.to(type)), ToGpu(of));
    EXPECT_TRUE(SameBits(out, x.to(type).index_select(0, of)));
  }
}

TEST_P(ExpertRowsTest, CombinesRows) {
  const int64_t width = GetParam();
  const Tensor x = Normal({kTokens * kChosen, width}, 1), addend = Normal({kTokens, width}, 2);
  const Tensor weights = Normal({kTokens, kChosen}, 3);
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    for (const auto added : {at::kFloat, type}) {
      for (const Tensor& by : {Tensor(), weights}) {
        Tensor expected = at::empty({kTokens, width}, type), actual = ToGpu(expected);
        ops::CombineRows(expected, x.to(type), Places(), by, addend.to(added));
        ops::CombineRows(actual, ToGpu(x.to(type)), ToGpu(Places()),
                         by.defined() ? ToGpu(by) : Tensor(), ToGpu(addend.to(added)));
        EXPECT_LT(RelativeError(actual, expected), type == at::kFloat ? 1e-6 : 1e-3);
      }
    }
    Tensor expected = at::empty({kTokens, width}, type), actual = ToGpu(expected);
    ops::CombineRows(expected, x.to(type), Places(), weights, {});
    ops::CombineRows(actual, ToGpu(x.to(type)), ToGpu(Places()), ToGpu(weights), {});
    EXPECT_LT(RelativeError(actual, expected), type == at::kFloat ? 1e-6 : 1e-3);
  }
}

TEST_P(ExpertRowsTest, WeighsTheGradientOfAGate) {
  const int64_t width = GetParam();
  const Tensor dy = RoundedNormal({kTokens, width}, 1);
  const Tensor gate_up = RoundedNormal({kTokens, 2 * width}, 2, 4.0);
  const Tensor weights = Normal({kTokens}, 3);
  for (const auto kind : {plan::ActivationKind::kSilu, plan::ActivationKind::kGeluTanh,
                          plan::ActivationKind::kClampedSwiGlu}) {
    Tensor expected = gate_up.clone();
    const Tensor products = ops::WeighedGluBackward(expected, dy, expected, weights, kind);
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      Tensor actual = ToGpu(gate_up.to(type));
      const Tensor sums =
          ops::WeighedGluBackward(actual, ToGpu(dy.to(type)), actual, ToGpu(weights), kind);
      EXPECT_LT(RelativeError(sums, products), 1e-5);
      EXPECT_LT(RelativeError(actual, expected), type == at::kFloat ? 1e-5 : 0.003);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, ExpertRowsTest, ::testing::Values(1, 5, 64, 2048, 2880),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sft::engine
