#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <iterator>

#include "worker/engine/kernels/mxfp4_format.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

// E2M1 and E8M0 by their definitions, in fp64: sign, two bits of exponent with bias 1 and one of
// mantissa, times 2^(byte - 127).
double Defined(int code, int scale_byte) {
  if (scale_byte == 0) return 0.0;
  const int exponent = code >> 1 & 3, mantissa = code & 1;
  const double size =
      exponent == 0 ? mantissa / 2.0 : std::ldexp(1.0 + mantissa / 2.0, exponent - 1);
  return std::ldexp((code & 8) != 0 ? -size : size, scale_byte - 127);
}

// Any codes of n elements, and a scale for each block: those at the ends and around one in turn.
struct Weight {
  Tensor codes, scales;
};
Weight AnyWeight(int64_t n) {
  const uint8_t bytes[] = {127, 0, 1, 254, 120, 128, 2};
  const int64_t blocks = (n + kMxfp4Block - 1) / kMxfp4Block;
  Weight weight{at::randint(256, {(n + 1) / 2}, at::detail::createCPUGenerator(11), at::kByte),
                at::empty({blocks}, at::kByte)};
  for (int64_t i = 0; i < blocks; ++i) weight.scales[i] = bytes[i % std::size(bytes)];
  return weight;
}

void ExpectDefined(const Tensor& out, const Weight& weight) {
  const Tensor values = out.to(at::kFloat);
  const float* actual = values.const_data_ptr<float>();
  const uint8_t* codes = weight.codes.const_data_ptr<uint8_t>();
  const uint8_t* scales = weight.scales.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    const int code = codes[i / 2] >> (i % 2 * 4) & 15;
    // Beyond fp32 it is infinite, as a cast has it.
    const auto expected = static_cast<float>(Defined(code, scales[i / kMxfp4Block]));
    ASSERT_EQ(actual[i], expected)
        << "element " << i << ", code " << code << ", scale " << int{scales[i / kMxfp4Block]};
  }
}

TEST(Mxfp4Test, ValuesAreThoseOfTheDefinitionForWholeAndRaggedLengths) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t n : {1, 2, 7, 8, 31, 32, 33, 63, 1000, 4096, 100003}) {
      SCOPED_TRACE(n);
      const Weight weight = AnyWeight(n);
      Tensor out = at::full({n}, 5.0, type);
      ops::Mxfp4Dequantize(out, weight.codes, weight.scales);
      ExpectDefined(out, weight);
    }
  }
}

TEST(Mxfp4Test, EveryCodeUnderEveryScaleIsExactInBf16) {
  constexpr int kScales = 255;  // the last byte stands for no number
  Tensor codes = at::empty({kScales, kMxfp4Block / 2}, at::kByte);
  for (int pair = 0; pair < kMxfp4Block / 2; ++pair) {
    const int low = 2 * pair % 16, high = (2 * pair + 1) % 16;
    codes.select(1, pair).fill_(low | high << 4);
  }
  const Weight weight{codes.flatten(), at::arange(kScales, at::kByte)};
  Tensor bf16 = at::empty({kScales * kMxfp4Block}, at::kBFloat16);
  ops::Mxfp4Dequantize(bf16, weight.codes, weight.scales);
  ExpectDefined(bf16, weight);
}

TEST(Mxfp4Test, RefusesPlanesThatAreTooShortAndOtherTypes) {
  const Weight weight = AnyWeight(96);
  Tensor out = at::empty({97}, at::kFloat), half = at::empty({96}, at::kHalf);
  EXPECT_THROW(ops::Mxfp4Dequantize(out, weight.codes, weight.scales), c10::Error);
  EXPECT_THROW(ops::Mxfp4Dequantize(half, weight.codes, weight.scales), c10::Error);
  out = at::empty({96, 2}, at::kFloat).select(1, 0);
  EXPECT_THROW(ops::Mxfp4Dequantize(out, weight.codes, weight.scales), c10::Error);
}

}  // namespace
}  // namespace sft::engine
