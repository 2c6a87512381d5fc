#include <tuple>
#include <vector>

#include "tests/gpu/fp8_data.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/grouped_data.h"
#include "worker/engine/kernels/ops.h"

// Products of groups of rows in FP8, and the rows in FP8 that stand around them, beside the CPU.

namespace sft::engine {
namespace {

// Ragged, empty and skewed groups; sums of less and more than a stage of 128, and of parts of one.
const GroupedShape kGroupedFp8Shapes[] = {
    {{5}, 8, 16, 8},
    {{0, 1, 63, 64, 65, 0, 128, 129, 300, 0}, 72, 208, 16},
    {{127, 0, 255, 2100, 1}, 264, 320, 24},
    {{700, 3, 0, 513}, 1536, 528, 16},
    {{260, 140}, 2880, 2880, 64},
    {std::vector<int>(130, 9), 512, 144, 80},
    {{200, 300}, 192, 128, 12},  // a rank that the kernel leaves to others
};

// Rows in FP8 on both devices; the GPU's in a buffer with columns to spare which are NaN.
struct BothRows {
  explicit BothRows(const Tensor& x)
      : host{at::empty(x.sizes(), at::kFloat8_e4m3fn), at::empty({x.size(0)})} {
    ops::Fp8Quantize(host.values, host.scale, x);
    const int64_t width = x.size(1);
    Tensor bytes = ToGpu(at::full({x.size(0), width + 64}, 0x7f, at::kByte));
    bytes.narrow(1, 0, width).copy_(ToGpu(host.values.view(at::kByte)));
    gpu = {bytes.view(at::kFloat8_e4m3fn).narrow(1, 0, width), ToGpu(host.scale)};
  }
  ops::Fp8Rows host, gpu;
};

class GroupedFp8Test : public GpuTest, public ::testing::WithParamInterface<GroupedShape> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const CudaDeviceProperties device = Plugin().devices->Properties(0);
    if (device.compute_major != 9) GTEST_SKIP() << device.name << " is no Hopper";
    shape_ = GetParam();
    host_ = ops::RowGroups(shape_.begins());
    groups_ = ops::RowGroups(ToGpu(shape_.begins()));
    // Rows of different sizes, so that each needs its own scale.
    a_ = Normal({shape_.all_rows(), shape_.depth}, 1) *
         Uniform({shape_.all_rows(), 1}, 7, 0.01, 10.0);
    b_ = Normal({shape_.groups() * shape_.outputs, shape_.depth}, 2) *
         Uniform({shape_.groups() * shape_.outputs, 1}, 8, 0.01, 1.0);
    more_ = RoundedNormal({shape_.all_rows(), shape_.rank}, 3);
    bias_ = RoundedNormal({shape_.groups(), shape_.outputs}, 5);
  }
  Tensor MoreMatrices(bool across) const {
    if (across) return RoundedNormal({shape_.groups(), shape_.rank, shape_.outputs}, 4);
    return RoundedNormal({shape_.groups(), shape_.outputs, shape_.rank}, 4).transpose(1, 2);
  }
  Tensor Results(at::ScalarType type) const {
    return at::full({shape_.all_rows(), shape_.outputs}, 7.0, type);
  }
  Tensor Stack(const Tensor& rows) const {
    return rows.contiguous().view({shape_.groups(), shape_.outputs, shape_.depth});
  }

  GroupedShape shape_;
  ops::RowGroups host_, groups_;
  Tensor a_, b_, more_, bias_;
};

// Rounded to bf16 once; fast sums keep 14 bits or so at each of their steps.
constexpr double kFullSums = 0.003, kFastSums = 0.02;

TEST_P(GroupedFp8Test, ProductsAreThoseOfTheCpu) {
  const BothRows a(a_), b(b_);
  Tensor expected = Results(at::kFloat);
  ops::GroupedFp8Gemm(expected, a.host, Stack(b.host.values), b.host.scale, {}, false, host_);
  for (const bool fast : {false, true}) {
    Tensor actual = ToGpu(Results(at::kBFloat16)), again = ToGpu(Results(at::kBFloat16));
    for (Tensor* out : {&actual, &again}) {
      ops::GroupedFp8Gemm(*out, a.gpu, Stack(b.gpu.values), b.gpu.scale, {}, fast, groups_);
    }
    const double error = RelativeError(actual, expected);
    printf("[ grouped fp8 ] %s sums: relative error %.2e\n", fast ? "fast" : "full", error);
    EXPECT_LT(error, fast ? kFastSums : kFullSums);
    EXPECT_TRUE(SameBits(again, actual));
  }
}

TEST_P(GroupedFp8Test, AddASecondProductAndABias) {
  const BothRows a(a_), b(b_);
  for (const bool across : {false, true}) {
    const Tensor more_b = MoreMatrices(across);
    for (const bool biased : {false, true}) {
      Tensor expected = Results(at::kFloat);
      ops::GroupedFp8Gemm(expected, a.host, Stack(b.host.values), b.host.scale,
                          {more_, more_b, biased ? bias_ : Tensor()}, false, host_);
      for (const bool fast : {false, true}) {
        Tensor actual = ToGpu(Results(at::kBFloat16));
        ops::GroupedFp8Gemm(
            actual, a.gpu, Stack(b.gpu.values), b.gpu.scale,
            {InBf16OnGpu(more_), InBf16OnGpu(more_b), biased ? InBf16OnGpu(bias_) : Tensor()}, fast,
            groups_);
        EXPECT_LT(RelativeError(actual, expected), fast ? kFastSums : kFullSums)
            << across << biased;
      }
    }
  }
}

TEST_P(GroupedFp8Test, RowsOfNoGroupStayAsTheyAre) {
  const BothRows a(a_), b(b_);
  Tensor out = ToGpu(Results(at::kBFloat16));
  ops::GroupedFp8Gemm(out, a.gpu, Stack(b.gpu.values), b.gpu.scale, {}, false, groups_);
  EXPECT_TRUE(out.narrow(0, 0, 3).eq(7.0).all().item<bool>());
  EXPECT_TRUE(out.narrow(0, shape_.all_rows() - 5, 5).eq(7.0).all().item<bool>());
}

// Every element of a result, of sums that are exact in any order: small whole numbers.
TEST_P(GroupedFp8Test, WholeNumbersAreExact) {
  const Tensor a = Uniform({shape_.all_rows(), shape_.depth}, 11, -2.0, 2.99).floor();
  const Tensor b =
      Uniform({shape_.groups() * shape_.outputs, shape_.depth}, 12, -1.0, 1.99).floor();
  const Tensor one_a = at::ones({a.size(0)}), one_b = at::ones({b.size(0)});
  Tensor expected = Results(at::kFloat);
  ops::GroupedFp8Gemm(expected, {a.to(at::kFloat8_e4m3fn), one_a}, Stack(b.to(at::kFloat8_e4m3fn)),
                      one_b, {}, false, host_);
  for (const bool fast : {false, true}) {
    Tensor actual = ToGpu(Results(at::kBFloat16));
    ops::GroupedFp8Gemm(actual, {ToGpu(a.to(at::kFloat8_e4m3fn)), ToGpu(one_a)},
                        Stack(ToGpu(b.to(at::kFloat8_e4m3fn))), ToGpu(one_b), {}, fast, groups_);
    EXPECT_TRUE(at::equal(actual.to(at::kCPU), expected.to(at::kBFloat16))) << fast;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GroupedFp8Test, ::testing::ValuesIn(kGroupedFp8Shapes));

class GateInFp8Test : public GpuTest, public ::testing::WithParamInterface<int64_t> {
 protected:
  static constexpr plan::ActivationKind kGates[] = {plan::ActivationKind::kSilu,
                                                    plan::ActivationKind::kGeluTanh,
                                                    plan::ActivationKind::kClampedSwiGlu};
  static ops::Fp8Rows EmptyOnGpu(int64_t rows, int64_t width) {
    return {ToGpu(at::zeros({rows, width}, at::kByte)).view(at::kFloat8_e4m3fn),
            ToGpu(at::zeros({rows}))};
  }
  static void ExpectQuantised(const ops::Fp8Rows& made, const Tensor& rows) {
    ops::Fp8Rows expected = EmptyOnGpu(rows.size(0), rows.size(1));
    ops::Fp8Quantize(expected.values, expected.scale, rows);
    EXPECT_TRUE(SameBits(made.values.view(at::kByte), expected.values.view(at::kByte)));
    EXPECT_TRUE(SameBits(made.scale, expected.scale));
  }
};

TEST_P(GateInFp8Test, TheGateWritesWhatQuantisingItsRowsGives) {
  const int64_t width = GetParam(), rows = 37;
  const Tensor gate_up = Normal({rows, 2 * width}, 2, 4.0);
  for (const auto kind : kGates) {
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      Tensor plain = ToGpu(at::zeros({rows, width}, type)),
             out = ToGpu(at::zeros({rows, width}, type));
      const ops::Fp8Rows made = EmptyOnGpu(rows, width);
      ops::Glu(plain, ToGpu(gate_up.to(type)), kind);
      ops::Glu(out, ToGpu(gate_up.to(type)), kind, made);
      EXPECT_TRUE(SameBits(out, plain));
      ExpectQuantised(made, out);
    }
  }
}

TEST_P(GateInFp8Test, TheWeighedGradientOfAGateDoesToo) {
  const int64_t width = GetParam(), rows = 37;
  const Tensor dy = Normal({rows, width}, 1), weights = Normal({rows}, 3);
  const Tensor gate_up = Normal({rows, 2 * width}, 2, 4.0);
  for (const auto kind : kGates) {
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      Tensor plain = ToGpu(gate_up.to(type)), out = ToGpu(gate_up.to(type));
      const ops::Fp8Rows made = EmptyOnGpu(rows, 2 * width);
      const Tensor on_gpu = ToGpu(dy.to(type)), by = ToGpu(weights);
      const Tensor products = ops::WeighedGluBackward(plain, on_gpu, plain, by, kind);
      const Tensor sums = ops::WeighedGluBackward(out, on_gpu, out, by, kind, made);
      EXPECT_TRUE(SameBits(out, plain));
      EXPECT_LT(RelativeError(sums, products), 1e-5);
      ExpectQuantised(made, out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, GateInFp8Test,
                         ::testing::Values(1, 5, 64, 768, 2048, 2880, 4096, 8192),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sft::engine
