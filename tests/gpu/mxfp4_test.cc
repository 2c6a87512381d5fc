#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/mxfp4_format.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

class Mxfp4GpuTest : public GpuTest, public ::testing::WithParamInterface<int64_t> {};

// Any codes of n elements; of each block one of the scales where something may go wrong: no
// exponent, the least, one, what overflows.
struct Weight {
  at::Tensor codes, scales;
};
Weight AnyWeight(int64_t n) {
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(n));
  const int64_t blocks = (n + kMxfp4Block - 1) / kMxfp4Block;
  const at::Tensor bytes = at::tensor({0, 1, 2, 120, 127, 128, 254}, at::kByte);
  const at::Tensor which = at::arange(blocks, at::kLong).add(3).remainder(bytes.numel());
  return {at::randint(256, {(n + 1) / 2}, generator, at::kByte), bytes.index_select(0, which)};
}

TEST_P(Mxfp4GpuTest, DequantisesToTheBitsOfTheCpuKernel) {
  const int64_t n = GetParam();
  const Weight weight = AnyWeight(n);
  for (const auto type : {at::kBFloat16, at::kFloat}) {
    at::Tensor expected = at::full({n}, 5.0, type), actual = ToGpu(at::full({n}, -5.0, type));
    ops::Mxfp4Dequantize(expected, weight.codes, weight.scales);
    ops::Mxfp4Dequantize(actual, ToGpu(weight.codes), ToGpu(weight.scales));
    EXPECT_TRUE(SameBits(actual, expected)) << type;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Mxfp4GpuTest,
                         ::testing::Values(1, 2, 7, 8, 9, 31, 32, 33, 255, 1000, 16384, 16391,
                                           100003, 5760 * 2880),
                         ::testing::PrintToStringParamName());

TEST_F(GpuTest, Mxfp4WritesNothingBehindTheLastElement) {
  for (const int64_t n : {13, 2051}) {
    const Weight weight = AnyWeight(n);
    for (const auto type : {at::kBFloat16, at::kFloat}) {
      const at::Tensor buffer = ToGpu(at::full({n + 64}, 77.0, type));
      at::Tensor out = buffer.narrow(0, 0, n);
      ops::Mxfp4Dequantize(out, ToGpu(weight.codes), ToGpu(weight.scales));
      EXPECT_TRUE(buffer.narrow(0, n, 64).eq(77.0).all().item<bool>()) << type << " " << n;
    }
  }
}

TEST_F(GpuTest, Mxfp4RefusesSizesThatDoNotFit) {
  const Weight weight = AnyWeight(96);
  at::Tensor out = ToGpu(at::empty({97}, at::kBFloat16));
  EXPECT_THROW(ops::Mxfp4Dequantize(out, ToGpu(weight.codes), ToGpu(weight.scales)), c10::Error);
}

}  // namespace
}  // namespace sft::engine
