#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

class Nf4GpuTest : public GpuTest, public ::testing::WithParamInterface<int64_t> {};

// Weights with the cases that go wrong: a block of zeros, one of subnormals, one huge value.
at::Tensor Weights(int64_t n, at::ScalarType type) {
  at::Tensor w = Normal({n}, 7 + static_cast<uint64_t>(n), 0.02);
  if (n > 3 * kNf4Block) {
    w.narrow(0, kNf4Block, kNf4Block).zero_();
    w.narrow(0, 2 * kNf4Block, kNf4Block / 2).fill_(1e-39);
    w[3 * kNf4Block] = 3e4;
  }
  return w.to(type);
}

TEST_P(Nf4GpuTest, QuantisesToTheBitsOfTheCpuKernel) {
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    const at::Tensor w = Weights(GetParam(), type);
    const auto expected = ops::Nf4Quantize(w);
    const auto actual = ops::Nf4Quantize(ToGpu(w));
    EXPECT_TRUE(SameBits(actual.codes, expected.codes)) << type;
    EXPECT_TRUE(SameBits(actual.absmax, expected.absmax)) << type;
  }
}

TEST_P(Nf4GpuTest, DequantisesToTheBitsOfTheCpuKernel) {
  const auto quantised = ops::Nf4Quantize(Weights(GetParam(), at::kBFloat16));
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    at::Tensor expected = at::full({GetParam()}, 5.0, type);
    at::Tensor actual = ToGpu(at::full({GetParam()}, -5.0, type));
    ops::Nf4Dequantize(expected, quantised.codes, quantised.absmax);
    ops::Nf4Dequantize(actual, ToGpu(quantised.codes), ToGpu(quantised.absmax));
    EXPECT_TRUE(SameBits(actual, expected)) << type;
  }
}

TEST_P(Nf4GpuTest, DoubleQuantisationHasTheBitsOfTheCpuKernelButForTheOffsetsLastUlp) {
  const at::Tensor absmax = ops::Nf4Quantize(Weights(GetParam(), at::kBFloat16)).absmax;
  const auto actual = ops::AbsmaxQuantize(ToGpu(absmax));
  const float offset = actual.offset.item<float>();
  EXPECT_FLOAT_EQ(offset, ops::AbsmaxQuantize(absmax).offset.item<float>());
  const auto [codes, nested] = cpu::AbsmaxQuantizeAround(absmax, offset);
  EXPECT_TRUE(SameBits(actual.codes, codes));
  EXPECT_TRUE(SameBits(actual.nested_absmax, nested));
}

TEST_P(Nf4GpuTest, DequantisesNestedToTheBitsOfTheCpuKernel) {
  const auto quantised = ops::Nf4Quantize(Weights(GetParam(), at::kBFloat16));
  const auto nested = ops::AbsmaxQuantize(quantised.absmax);
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    at::Tensor expected = at::empty({GetParam()}, type);
    at::Tensor actual = ToGpu(at::full({GetParam()}, -5.0, type));
    ops::Nf4DequantizeNested(expected, quantised.codes, nested.codes, nested.nested_absmax,
                             nested.offset);
    ops::Nf4DequantizeNested(actual, ToGpu(quantised.codes), ToGpu(nested.codes),
                             ToGpu(nested.nested_absmax), ToGpu(nested.offset));
    EXPECT_TRUE(SameBits(actual, expected)) << type;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Nf4GpuTest,
                         ::testing::Values(1, 2, 7, 63, 64, 65, 255, 1000, 16384, 16385, 100003,
                                           kNf4CutUnit * 9 + 77, 1024 * 4096),
                         ::testing::PrintToStringParamName());

TEST_F(GpuTest, Nf4ReadsAndWritesViewsThatAreNotAligned) {
  const at::Tensor w = Weights(5001, at::kBFloat16);
  const at::Tensor view = ToGpu(w).narrow(0, 1, 5000);
  const auto expected = ops::Nf4Quantize(w.narrow(0, 1, 5000).contiguous());
  const auto actual = ops::Nf4Quantize(view);
  ASSERT_TRUE(SameBits(actual.codes, expected.codes));
  at::Tensor out = ToGpu(at::zeros({5001}, at::kBFloat16)).narrow(0, 1, 5000);
  at::Tensor plain = at::empty({5000}, at::kBFloat16);
  ops::Nf4Dequantize(out, actual.codes, actual.absmax);
  ops::Nf4Dequantize(plain, expected.codes, expected.absmax);
  EXPECT_TRUE(SameBits(out, plain));
}

TEST_F(GpuTest, Nf4DequantisesToRowsAnyDistanceApart) {
  struct Case {
    int64_t rows, columns, gap, before;
  };
  for (const Case& c :
       {Case{70, 4096, 192, 0}, Case{300, 64, 64, 64}, Case{300, 8, 8, 8}, Case{33, 1000, 24, 8},
        Case{33, 1001, 64, 0}, Case{500, 3, 5, 1}, Case{40, 256, 3, 0}, Case{40, 256, 64, 1}}) {
    const auto quantised = ops::Nf4Quantize(Weights(c.rows * c.columns, at::kBFloat16));
    const auto nested = ops::AbsmaxQuantize(quantised.absmax);
    const at::Tensor codes = ToGpu(quantised.codes);
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      at::Tensor expected = at::full({c.rows, c.before + c.columns + c.gap}, 77.0, type);
      at::Tensor actual = ToGpu(expected), nested_actual = ToGpu(expected);
      at::Tensor nested_expected = expected.clone();
      const auto rows = [&](const at::Tensor& buffer) {
        return buffer.narrow(1, c.before, c.columns);
      };
      at::Tensor out = rows(expected);
      ops::Nf4Dequantize(out, quantised.codes, quantised.absmax);
      out = rows(actual);
      ops::Nf4Dequantize(out, codes, ToGpu(quantised.absmax));
      EXPECT_TRUE(SameBits(actual, expected)) << type << " columns " << c.columns;
      out = rows(nested_expected);
      ops::Nf4DequantizeNested(out, quantised.codes, nested.codes, nested.nested_absmax,
                               nested.offset);
      out = rows(nested_actual);
      ops::Nf4DequantizeNested(out, codes, ToGpu(nested.codes), ToGpu(nested.nested_absmax),
                               ToGpu(nested.offset));
      EXPECT_TRUE(SameBits(nested_actual, nested_expected)) << type << " columns " << c.columns;
    }
  }
}

TEST_F(GpuTest, Nf4CodesOfAllBf16ValuesEqualTheCpuKernels) {
  // Every finite bf16 between -1 and 1, each in a block whose absmax is 1.
  at::Tensor values = at::arange(0, 1 << 16, at::kInt).to(at::kShort).view(at::kBFloat16);
  values = values.masked_select(values.to(at::kFloat).abs().le(1.0));
  at::Tensor w = at::ones({values.numel(), kNf4Block}, at::kBFloat16);
  w.select(1, 1).copy_(values);
  EXPECT_TRUE(SameBits(ops::Nf4Quantize(ToGpu(w)).codes, ops::Nf4Quantize(w).codes));
}

TEST_F(GpuTest, Nf4RefusesSizesThatDoNotFit) {
  at::Tensor out = ToGpu(at::empty({128}, at::kBFloat16));
  const auto quantised = ops::Nf4Quantize(ToGpu(Normal({130}, 1)));
  EXPECT_THROW(ops::Nf4Dequantize(out, quantised.codes, quantised.absmax), c10::Error);
  EXPECT_THROW(ops::Nf4Quantize(ToGpu(at::zeros({64}, at::kDouble))), c10::Error);
}

}  // namespace
}  // namespace sft::engine
