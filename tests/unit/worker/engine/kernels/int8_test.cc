#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker/engine/kernels/int8_format.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

Tensor RandomWeight(int64_t rows, int64_t columns, at::ScalarType type) {
  const Tensor weight = at::randn({rows, columns}, at::detail::createCPUGenerator(7), at::kFloat);
  return weight.mul(0.02).to(type);
}

Tensor LargestOf(const Tensor& weight) { return weight.to(at::kFloat).abs().amax({1}); }

TEST(Int8Test, CodesFollowTheDefinition) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {1, 7, 64, 1000}) {
      const Tensor weight = RandomWeight(33, columns, type), w = weight.to(at::kFloat);
      const Tensor absmax = LargestOf(weight), codes = ops::Int8Quantize(weight, absmax);
      ASSERT_EQ(codes.sizes(), weight.sizes());
      for (int64_t i = 0; i < w.numel(); ++i) {
        const float inverse = kInt8Largest / absmax.data_ptr<float>()[i / columns];
        const float scaled = w.data_ptr<float>()[i] * inverse;
        ASSERT_EQ(codes.data_ptr<int8_t>()[i], std::nearbyint(scaled)) << columns << ", " << i;
      }
    }
  }
}

TEST(Int8Test, CodesOfExactHalvesAreEven) {
  // 127 / absmax is 1: the values are their own codes before they are rounded.
  const Tensor weight =
      at::tensor({127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f, 126.49f}).view({1, 8});
  const Tensor codes = ops::Int8Quantize(weight, LargestOf(weight));
  const std::vector<int8_t> expected = {127, 0, 2, 2, 0, -2, -126, 126};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(codes.data_ptr<int8_t>()[i], expected[i]) << i;
}

TEST(Int8Test, RowsOfZerosAndOfTinyValuesHaveCodeZero) {
  for (const float value : {0.0f, 1e-39f, 1e-37f, 7e-31f}) {
    const Tensor weight = at::full({2, 20}, value, at::kFloat), absmax = LargestOf(weight);
    const Tensor codes = ops::Int8Quantize(weight, absmax);
    EXPECT_EQ(codes.count_nonzero().item<int64_t>(), 0) << value;
    Tensor out = at::ones({2, 20}, at::kFloat);
    ops::Int8Dequantize(out, codes, absmax * kInt8Step);
    EXPECT_TRUE(at::equal(out, at::zeros({2, 20}))) << value;
  }
}

TEST(Int8Test, ALargestMagnitudeMayLieBeyondThePartThatIsGiven) {
  const Tensor weight = at::tensor({1.0f, -2.0f, 0.25f}).view({1, 3});
  const Tensor codes = ops::Int8Quantize(weight, at::tensor({4.0f}));
  EXPECT_TRUE(at::equal(codes, at::tensor({32, -64, 8}, at::kChar).view({1, 3})));
}

TEST(Int8Test, ANonFiniteWeightIsNotFiniteWhenDequantised) {
  for (const float wrong :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Tensor weight = RandomWeight(2, 16, at::kFloat);
    weight[1][3] = wrong;
    const Tensor absmax = LargestOf(weight);
    Tensor out = at::zeros({2, 16}, at::kFloat);
    ops::Int8Dequantize(out, ops::Int8Quantize(weight, absmax), absmax * kInt8Step);
    EXPECT_TRUE(out[0].isfinite().all().item<bool>());
    EXPECT_FALSE(out[1][3].isfinite().item<bool>());
  }
}

TEST(Int8Test, DequantizesToRowsAnyDistanceApartRoundedOnce) {
  for (const int64_t columns : {1, 3, 48, 64, 1000}) {
    const Tensor weight = RandomWeight(37, columns, at::kBFloat16), absmax = LargestOf(weight);
    const Tensor codes = ops::Int8Quantize(weight, absmax), scale = absmax * kInt8Step;
    const Tensor value = codes.to(at::kFloat) * scale.unsqueeze(1);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensor buffer = at::full({37, columns + 16}, 77.0, type);
      Tensor out = buffer.narrow(1, 8, columns);
      ops::Int8Dequantize(out, codes, scale);
      EXPECT_TRUE(at::equal(out, value.to(type))) << columns;
      EXPECT_TRUE((buffer.narrow(1, 0, 8) == 77.0).all().item<bool>());
      EXPECT_TRUE((buffer.narrow(1, 8 + columns, 8) == 77.0).all().item<bool>());
    }
  }
}

TEST(Int8Test, RefusesWhatDoesNotFit) {
  const Tensor weight = RandomWeight(4, 8, at::kFloat), absmax = LargestOf(weight);
  const Tensor codes = ops::Int8Quantize(weight, absmax);
  Tensor narrow = at::empty({4, 7}), transposed = at::empty({8, 4}).t();
  EXPECT_THROW(ops::Int8Dequantize(narrow, codes, absmax), c10::Error);
  EXPECT_THROW(ops::Int8Dequantize(transposed, codes, absmax), c10::Error);
  EXPECT_THROW(ops::Int8Quantize(weight, absmax.narrow(0, 0, 3)), c10::Error);
  EXPECT_THROW(ops::Int8Quantize(weight.to(at::kDouble), absmax), c10::Error);
}

}  // namespace
}  // namespace sft::engine
