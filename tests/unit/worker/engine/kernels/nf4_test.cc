#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

// The definition, element by element: the number of midpoints between neighbouring values that
// w * (1 / absmax) exceeds.
int DefinedCode(float scaled) {
  int code = 0;
  while (code < 15 && scaled > kNf4Thresholds[code]) ++code;
  return code;
}

Tensor RandomWeight(int64_t n, at::ScalarType type) {
  return at::randn({n}, at::detail::createCPUGenerator(7), at::kFloat).mul_(0.02).to(type);
}

TEST(Nf4TablesTest, ThresholdsAreTheMidpointsOfNeighbouringValues) {
  for (int i = 0; i < 15; ++i) {
    const double middle = (double{kNf4Values[i]} + double{kNf4Values[i + 1]}) / 2;
    EXPECT_NEAR(kNf4Thresholds[i], middle, 1e-7) << i;
  }
}

TEST(Nf4TablesTest, DynamicMapIsBitsandbytesFormula) {
  std::vector<float> values = {0.0f, 1.0f};
  for (int decade = 0; decade < 7; ++decade) {
    const Tensor bounds = at::linspace(0.1, 1, (1 << decade) + 1, at::kFloat);
    const Tensor means = bounds.narrow(0, 0, 1 << decade)
                             .add(bounds.narrow(0, 1, 1 << decade))
                             .div(2.0)
                             .mul(std::pow(10.0, decade - 6));
    for (int i = 0; i < means.numel(); ++i) {
      values.push_back(means[i].item<float>());
      values.push_back(-means[i].item<float>());
    }
  }
  std::sort(values.begin(), values.end());
  ASSERT_EQ(values.size(), 256u);
  for (int i = 0; i < 256; ++i) EXPECT_FLOAT_EQ(kDynamicMap[i], values[i]) << i;
}

TEST(Nf4Test, CodesFollowTheDefinitionForWholeAndRaggedLengths) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int64_t n : {1, 63, 64, 65, 4096, 4097, 200001}) {
      const Tensor weight = RandomWeight(n, type);
      const Tensor w = weight.to(at::kFloat);
      const auto [codes, absmax] = ops::Nf4Quantize(weight);
      ASSERT_EQ(codes.numel(), (n + 1) / 2);
      ASSERT_EQ(absmax.numel(), (n + 63) / 64);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t block = i / 64;
        const Tensor members = w.narrow(0, block * 64, std::min<int64_t>(64, n - block * 64));
        if (i % 64 == 0) {
          ASSERT_EQ(absmax.data_ptr<float>()[block], members.abs().max().item<float>());
        }
        const float inverse = 1.0f / absmax.data_ptr<float>()[block];
        const int byte = codes.data_ptr<uint8_t>()[i / 2];
        ASSERT_EQ(i % 2 == 0 ? byte >> 4 : byte & 15, DefinedCode(w.data_ptr<float>()[i] * inverse))
            << "n " << n << " element " << i;
      }
      if (n % 2 == 1) {
        EXPECT_EQ(codes.data_ptr<uint8_t>()[n / 2] & 15, 7);
      }
    }
  }
}

TEST(Nf4Test, ZeroAndSubnormalBlocksHaveCodeZeroAndDequantizeToMinusZero) {
  for (float value : {0.0f, 1e-39f}) {
    const auto [codes, absmax] = ops::Nf4Quantize(at::full({64}, value, at::kFloat));
    EXPECT_EQ(absmax.item<float>(), 0.0f);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(codes.data_ptr<uint8_t>()[i], 0);
    Tensor out = at::ones({64}, at::kFloat);
    ops::Nf4Dequantize(out, codes, absmax);
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(out.data_ptr<float>()[i], 0.0f);
      EXPECT_TRUE(std::signbit(out.data_ptr<float>()[i]));
    }
  }
}

TEST(Nf4Test, DequantizedValueIsTableTimesAbsmaxRoundedOnce) {
  for (int64_t n : {64, 100, 16384 * 2 + 77}) {
    const auto [codes, absmax] = ops::Nf4Quantize(RandomWeight(n, at::kBFloat16));
    Tensor single = at::empty({n}, at::kFloat);
    Tensor brain = at::empty({n}, at::kBFloat16);
    ops::Nf4Dequantize(single, codes, absmax);
    ops::Nf4Dequantize(brain, codes, absmax);
    for (int64_t i = 0; i < n; ++i) {
      const int byte = codes.data_ptr<uint8_t>()[i / 2];
      const float value =
          kNf4Values[i % 2 == 0 ? byte >> 4 : byte & 15] * absmax.data_ptr<float>()[i / 64];
      ASSERT_EQ(single.data_ptr<float>()[i], value) << i;
      ASSERT_EQ(static_cast<float>(brain.data_ptr<c10::BFloat16>()[i]),
                static_cast<float>(c10::BFloat16(value)));
    }
  }
}

TEST(Nf4Test, DequantizesToRowsAnyDistanceApart) {
  for (const int64_t columns : {1, 3, 48, 64, 192, 1000}) {
    const int64_t rows = 37;
    const auto [codes, absmax] = ops::Nf4Quantize(RandomWeight(rows * columns, at::kFloat));
    const auto nested = ops::AbsmaxQuantize(absmax);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      Tensor dense = at::empty({rows * columns}, type);
      Tensor buffer = at::full({rows, columns + 16}, 77.0, type);
      Tensor out = buffer.narrow(1, 8, columns);
      ops::Nf4Dequantize(dense, codes, absmax);
      ops::Nf4Dequantize(out, codes, absmax);
      EXPECT_TRUE(at::equal(out, dense.view({rows, columns}))) << columns;
      ops::Nf4DequantizeNested(dense, codes, nested.codes, nested.nested_absmax, nested.offset);
      ops::Nf4DequantizeNested(out, codes, nested.codes, nested.nested_absmax, nested.offset);
      EXPECT_TRUE(at::equal(out, dense.view({rows, columns}))) << columns;
      EXPECT_TRUE((buffer.narrow(1, 0, 8) == 77.0).all().item<bool>());
      EXPECT_TRUE((buffer.narrow(1, 8 + columns, 8) == 77.0).all().item<bool>());
    }
  }
}

TEST(Nf4Test, RefusesRowsThatAreNotDense) {
  const auto [codes, absmax] = ops::Nf4Quantize(RandomWeight(6 * 64, at::kFloat));
  Tensor out = at::empty({64, 6}).t();
  EXPECT_THROW(ops::Nf4Dequantize(out, codes, absmax), c10::Error);
}

// Nearest position by exhaustive search; ties are checked apart.
int NearestDynamic(float x) {
  int best = 0;
  for (int i = 1; i < 256; ++i) {
    if (std::fabs(double{x} - double{kDynamicMap[i]}) <
        std::fabs(double{x} - double{kDynamicMap[best]})) {
      best = i;
    }
  }
  return best;
}

TEST(AbsmaxQuantizeTest, TakesTheNearestPositionOfTheDynamicMap) {
  const int64_t m = 256 * 5 + 31;
  const Tensor absmax = at::rand({m}, at::detail::createCPUGenerator(3), at::kFloat).mul_(0.1);
  const auto [codes, nested, offset] = ops::AbsmaxQuantize(absmax);
  ASSERT_EQ(nested.numel(), 6);
  EXPECT_NEAR(offset.item<float>(), absmax.mean().item<float>(), 1e-8);
  int differences = 0;
  for (int64_t i = 0; i < m; ++i) {
    const float scaled = (absmax.data_ptr<float>()[i] - offset.item<float>()) *
                         (1.0f / nested.data_ptr<float>()[i / 256]);
    const int code = codes.data_ptr<uint8_t>()[i];
    if (code == NearestDynamic(scaled)) continue;
    // Only where two positions are equally near but for rounding of the midpoint.
    ++differences;
    EXPECT_NEAR(std::fabs(scaled - kDynamicMap[code]),
                std::fabs(scaled - kDynamicMap[NearestDynamic(scaled)]), 1e-7);
  }
  EXPECT_LE(differences, 2);
}

TEST(AbsmaxQuantizeTest, BlockEqualToTheOffsetHasCodeZero) {
  const auto [codes, nested] = cpu::AbsmaxQuantizeAround(at::full({256}, 0.5, at::kFloat), 0.5f);
  EXPECT_EQ(nested.item<float>(), 0.0f);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(codes.data_ptr<uint8_t>()[i], 0);
}

TEST(AbsmaxQuantizeTest, NestedDequantizeRoundsTheProductBeforeTheOffset) {
  const int64_t n = 16384 * 3 + 64 * 5 + 9;
  const auto [codes, absmax] = ops::Nf4Quantize(RandomWeight(n, at::kFloat));
  const auto [absmax_codes, nested, offset] = ops::AbsmaxQuantize(absmax);
  Tensor restored = at::empty({absmax.numel()}, at::kFloat);
  for (int64_t i = 0; i < absmax.numel(); ++i) {
    const volatile float product =
        kDynamicMap[absmax_codes.data_ptr<uint8_t>()[i]] * nested.data_ptr<float>()[i / 256];
    restored.data_ptr<float>()[i] = product + offset.item<float>();
  }
  Tensor expected = at::empty({n}, at::kFloat);
  ops::Nf4Dequantize(expected, codes, restored);
  Tensor actual = at::empty({n}, at::kFloat);
  ops::Nf4DequantizeNested(actual, codes, absmax_codes, nested, offset);
  EXPECT_TRUE(at::equal(expected, actual));
}

}  // namespace
}  // namespace sft::engine
