// Frozen weights held in FP8 alone.
#include "worker/engine/weights/frozen_fp8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kExperts = 3, kOut = 32, kIn = 48, kRank = 16;

ParamInfo Weight(const std::string& name, int64_t rows, int64_t columns, int64_t experts = 0) {
  ParamInfo param;
  param.name = name;
  param.shape = {rows, columns};
  param.experts = experts;
  return param;
}

// Two linears of one input, one with an adapter, and the stack of three experts.
UnitInfo Block() {
  UnitInfo unit{.name = "block"};
  unit.params = {Weight("q.weight", kOut, kIn), Weight("k.weight", 16, kIn),
                 Weight("experts.weight", kExperts * kOut, kIn, kExperts),
                 Weight("q.lora_A.weight", kRank, kIn), Weight("q.lora_B.weight", kOut, kRank)};
  unit.shared_matrices = {{0, 1}, {2}};
  return unit;
}

UnitWeights WeightsOf(const UnitInfo& unit) {
  UnitWeights weights(unit);
  const Tensor matrix = at::randn({kOut + 16, kIn});
  weights[0] = matrix.narrow(0, 0, kOut);
  weights[1] = matrix.narrow(0, kOut, 16);
  weights[2] = at::randn({kExperts * kOut, kIn});
  return weights;
}

Tensor Exact(const Tensor& values, const Tensor& scale) {
  return values.to(at::kFloat).mul(scale.unsqueeze(1));
}

TEST(FrozenFp8Test, LinearsHaveRoomForTheirAdaptersBothWays) {
  const UnitInfo unit = Block();
  const UnitWeights weights = WeightsOf(unit);
  const Fp8Matrix fp8 = MakeFrozenFp8(unit, weights)[0];
  const Tensor matrix = at::cat({weights[0], weights[1]});
  Tensor values = at::empty(matrix.sizes(), at::kFloat8_e4m3fn), scale = at::empty({kOut + 16});
  ops::Fp8Quantize(values, scale, matrix);
  EXPECT_TRUE(at::equal(fp8.forward.narrow(1, 0, kIn).contiguous().view(at::kByte),
                        values.view(at::kByte)));
  EXPECT_TRUE(at::equal(fp8.forward_scale, scale));
  EXPECT_EQ(fp8.forward.size(1), kIn + kRank);
  EXPECT_EQ(fp8.backward.size(1), kOut + 16 + kRank);
  const Tensor turned = fp8.backward.narrow(1, 0, kOut + 16);
  EXPECT_TRUE(at::allclose(Exact(turned, fp8.backward_scale), matrix.t(), 0.07, 1e-3));
}

TEST(FrozenFp8Test, ExpertsHaveScalesThatArePowersOfTwo) {
  const UnitInfo unit = Block();
  UnitWeights weights = WeightsOf(unit);
  weights[2][5].zero_();
  const Fp8Matrix fp8 = MakeFrozenFp8(unit, weights)[1];
  const Tensor stack = weights[2];
  const Tensor turned = stack.view({kExperts, kOut, kIn}).transpose(1, 2).reshape({-1, kOut});
  EXPECT_EQ(fp8.backward.sizes(), at::IntArrayRef({kExperts * kIn, kOut}));
  for (const auto& [values, scale, expected] :
       {std::tuple(fp8.forward, fp8.forward_scale, stack),
        std::tuple(fp8.backward, fp8.backward_scale, turned)}) {
    const Tensor exponent = at::log2(scale);
    EXPECT_TRUE(at::equal(exponent, exponent.round()));
    EXPECT_TRUE(at::allclose(Exact(values, scale), expected, 0.0626, 1e-4));
    const Tensor largest = values.to(at::kFloat).abs().amax(1);
    EXPECT_GE(at::where(largest > 0, largest, 448.0F).min().item<float>(), 208.0F);
  }
  EXPECT_EQ(fp8.forward_scale[5].item<float>(), 1.0F);
}

// Blocks of 32 values of 4 bits (e2m1) times a power of two: exact where the powers of a row, and
// of a column of an expert, are at most 14 apart.
TEST(FrozenFp8Test, ValuesOfMxfp4LoseNothing) {
  const UnitInfo unit = Block();
  UnitWeights weights = WeightsOf(unit);
  const Tensor values = at::tensor({0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}, at::kFloat);
  const Tensor codes = at::randint(8, {kExperts * kOut, kIn}, at::kLong);
  const Tensor signs = at::randint(2, {kExperts * kOut, kIn}).mul(2.0).sub(1.0);
  const Tensor powers = at::exp2(at::randint(-20, -5, {kExperts * kOut, 1}));
  weights[2] = values.index({codes}).mul(signs).mul(powers);
  const Fp8Matrix fp8 = MakeFrozenFp8(unit, weights)[1];
  EXPECT_TRUE(at::equal(Exact(fp8.forward, fp8.forward_scale), weights[2]));
  const Tensor turned = Exact(fp8.backward, fp8.backward_scale).view({kExperts, kIn, kOut});
  EXPECT_TRUE(at::equal(turned.transpose(1, 2).reshape({-1, kIn}), weights[2]));
}

TEST(FrozenFp8Test, AResidentSourceGivesTheCopiesInPlaceOfTheWeights) {
  ModelLayout layout;
  layout.units = {UnitInfo{}, Block(), UnitInfo{}};
  const UnitInfo& unit = layout.units[1];
  const UnitWeights weights = WeightsOf(unit);
  ResidentSource source(layout);
  for (int param = 0; param < 3; ++param) source.Set(1, param, weights[param]);
  std::vector<Fp8Matrix> matrices = MakeFrozenFp8(unit, source.Get(1));
  matrices[0] = {};  // stays as it is
  source.SetFp8(unit, 1, matrices);
  const AcquiredUnit acquired(source, layout, 1);
  EXPECT_TRUE(acquired.weights()[0].defined());
  EXPECT_FALSE(acquired.weights()[2].defined());
  EXPECT_TRUE(acquired.weights().matrices[0].defined());
  EXPECT_TRUE(acquired.weights().fp8[1].forward.is_same(matrices[1].forward));
  const int64_t copies = 2 * kExperts * kOut * kIn + 4 * kExperts * (kOut + kIn);
  EXPECT_EQ(source.ResidentBytes(), 4 * (kOut + 16) * kIn + copies);
}

TEST(FrozenFp8Test, ALinearOfAnotherSizeIsRefusedByName) {
  UnitInfo unit = Block();
  UnitWeights weights(unit);
  unit.params[2] = Weight("experts.weight", kExperts * 24, kIn, kExperts);
  weights[2] = at::randn({kExperts * 24, kIn});
  try {
    MakeFrozenFp8(unit, weights);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("experts.weight has 24 outputs and 48 inputs"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sft::engine
