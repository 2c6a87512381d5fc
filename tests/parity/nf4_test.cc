#include <cmath>
#include <string>
#include <tuple>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/parity/golden_case.h"
#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/ops.h"

// NF4 bytes, absmax and nested state against bitsandbytes: "nf4_cuda" was made by its CUDA kernels,
// "nf4" by the definition of tests/parity/nf4.py.

namespace sft::engine {
namespace {

using at::Tensor;

class Nf4ParityTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  GoldenTensors golden_{GoldenDir() / std::get<0>(GetParam()) /
                        (std::string(std::get<1>(GetParam())) + ".safetensors")};
  // The weights are stored once.
  GoldenTensors weight_{GoldenDir() / "nf4" /
                        (std::string(std::get<1>(GetParam())) + ".safetensors")};
};

TEST_P(Nf4ParityTest, CodesAndAbsmaxAreEqualBitForBit) {
  const auto [codes, absmax] = ops::Nf4Quantize(weight_.Get("weight").contiguous());
  EXPECT_TRUE(at::equal(codes, golden_.Get("packed").view({-1})));
  EXPECT_TRUE(at::equal(absmax, golden_.Get("absmax").view({-1})));
}

TEST_P(Nf4ParityTest, OffsetIsWithinAnUlpAndNestedStateEqualAroundIt) {
  const Tensor absmax = golden_.Get("absmax").view({-1});
  const float expected = golden_.Get("offset").item<float>();
  const float offset = ops::AbsmaxQuantize(absmax).offset.item<float>();
  EXPECT_TRUE(offset == expected || offset == std::nextafter(expected, 1e30f) ||
              offset == std::nextafter(expected, -1e30f))
      << offset << " against " << expected;
  // Codes are defined around the offset: theirs, so that an ulp of it does not hide the rest.
  const auto [codes, nested] = cpu::AbsmaxQuantizeAround(absmax, expected);
  EXPECT_TRUE(at::equal(codes, golden_.Get("absmax_codes").view({-1})));
  EXPECT_TRUE(at::equal(nested, golden_.Get("absmax2").view({-1})));
}

TEST_P(Nf4ParityTest, DequantizedWeightIsEqualBitForBit) {
  const Tensor expected = golden_.Get("dequantized");
  Tensor out = at::empty({expected.numel()}, at::kBFloat16);
  ops::Nf4DequantizeNested(out, golden_.Get("packed").view({-1}),
                           golden_.Get("absmax_codes").view({-1}),
                           golden_.Get("absmax2").view({-1}), golden_.Get("offset").view({-1}));
  EXPECT_TRUE(at::equal(out, expected.view({-1})));
}

INSTANTIATE_TEST_SUITE_P(Goldens, Nf4ParityTest,
                         testing::Combine(testing::Values("nf4", "nf4_cuda"),
                                          testing::Values("192x320", "576x128", "100x200")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

}  // namespace
}  // namespace sft::engine
