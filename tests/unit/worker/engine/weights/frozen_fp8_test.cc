// Frozen weights held in FP8 alone.
#include "worker/engine/weights/frozen_fp8.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/mxfp4_format.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/weights/quant_format.h"
#include "worker/engine/weights/unit_expansion.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kFrozenExperts = 3, kFrozenOut = 32, kFrozenIn = 48, kFrozenRank = 16;

ParamInfo FrozenWeight(const std::string& name, int64_t rows, int64_t columns,
                       int64_t experts = 0) {
  ParamInfo param;
  param.name = name;
  param.shape = {rows, columns};
  param.experts = experts;
  return param;
}

// Two linears of one input, one with an adapter, and the stack of three experts.
UnitInfo FrozenBlock() {
  UnitInfo unit{.name = "block"};
  unit.params = {
      FrozenWeight("q.weight", kFrozenOut, kFrozenIn), FrozenWeight("k.weight", 16, kFrozenIn),
      FrozenWeight("experts.weight", kFrozenExperts * kFrozenOut, kFrozenIn, kFrozenExperts),
      FrozenWeight("q.lora_A.weight", kFrozenRank, kFrozenIn),
      FrozenWeight("q.lora_B.weight", kFrozenOut, kFrozenRank)};
  unit.shared_matrices = {{0, 1}, {2}};
  return unit;
}

UnitWeights FrozenWeights(const UnitInfo& unit) {
  UnitWeights weights(unit);
  const Tensor matrix = at::randn({kFrozenOut + 16, kFrozenIn});
  weights[0] = matrix.narrow(0, 0, kFrozenOut);
  weights[1] = matrix.narrow(0, kFrozenOut, 16);
  weights[2] = at::randn({kFrozenExperts * kFrozenOut, kFrozenIn});
  return weights;
}

Tensor WithScales(const Tensor& values, const Tensor& scale) {
  return values.to(at::kFloat).mul(scale.unsqueeze(1));
}

TEST(FrozenFp8Test, LinearsHaveRoomForTheirAdaptersBothWays) {
  const UnitInfo unit = FrozenBlock();
  const UnitWeights weights = FrozenWeights(unit);
  const Fp8Matrix fp8 = MakeFrozenFp8(unit, weights)[0];
  const Tensor matrix = at::cat({weights[0], weights[1]});
  Tensor values = at::empty(matrix.sizes(), at::kFloat8_e4m3fn),
         scale = at::empty({kFrozenOut + 16});
  ops::Fp8Quantize(values, scale, matrix);
  EXPECT_TRUE(at::equal(fp8.forward.narrow(1, 0, kFrozenIn).contiguous().view(at::kByte),
                        values.view(at::kByte)));
  EXPECT_TRUE(at::equal(fp8.forward_scale, scale));
  EXPECT_EQ(fp8.forward.size(1), kFrozenIn + kFrozenRank);
  EXPECT_EQ(fp8.backward.size(1), kFrozenOut + 16 + kFrozenRank);
  const Tensor turned = fp8.backward.narrow(1, 0, kFrozenOut + 16);
  EXPECT_TRUE(at::allclose(WithScales(turned, fp8.backward_scale), matrix.t(), 0.07, 1e-3));
}

TEST(FrozenFp8Test, ExpertsHaveScalesThatArePowersOfTwo) {
  const UnitInfo unit = FrozenBlock();
  UnitWeights weights = FrozenWeights(unit);
  weights[2][5].zero_();
  const Fp8Matrix fp8 = MakeFrozenFp8(unit, weights)[1];
  const Tensor stack = weights[2];
  const Tensor turned =
      stack.view({kFrozenExperts, kFrozenOut, kFrozenIn}).transpose(1, 2).reshape({-1, kFrozenOut});
  EXPECT_EQ(fp8.backward.sizes(), at::IntArrayRef({kFrozenExperts * kFrozenIn, kFrozenOut}));
  for (const auto& [values, scale, expected] :
       {std::tuple(fp8.forward, fp8.forward_scale, stack),
        std::tuple(fp8.backward, fp8.backward_scale, turned)}) {
    const Tensor exponent = at::log2(scale);
    EXPECT_TRUE(at::equal(exponent, exponent.round()));
    EXPECT_TRUE(at::allclose(WithScales(values, scale), expected, 0.0626, 1e-4));
    const Tensor largest = values.to(at::kFloat).abs().amax(1);
    EXPECT_GE(at::where(largest > 0, largest, 448.0F).min().item<float>(), 208.0F);
  }
  EXPECT_EQ(fp8.forward_scale[5].item<float>(), 1.0F);
}

// Blocks of 32 values of 4 bits (e2m1) times a power of two: exact where the powers of a row, and
// of a column of an expert, are at most 14 apart.
TEST(FrozenFp8Test, ValuesOfMxfp4LoseNothing) {
  const UnitInfo unit = FrozenBlock();
  UnitWeights weights = FrozenWeights(unit);
  const Tensor values = at::tensor({0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}, at::kFloat);
  const Tensor codes = at::randint(8, {kFrozenExperts * kFrozenOut, kFrozenIn}, at::kLong);
  const Tensor signs = at::randint(2, {kFrozenExperts * kFrozenOut, kFrozenIn}).mul(2.0).sub(1.0);
  const Tensor powers = at::exp2(at::randint(-20, -5, {kFrozenExperts * kFrozenOut, 1}));
  weights[2] = values.index({codes}).mul(signs).mul(powers);
  const Fp8Matrix fp8 = MakeFrozenFp8(unit, weights)[1];
  EXPECT_TRUE(at::equal(WithScales(fp8.forward, fp8.forward_scale), weights[2]));
  const Tensor turned =
      WithScales(fp8.backward, fp8.backward_scale).view({kFrozenExperts, kFrozenIn, kFrozenOut});
  EXPECT_TRUE(at::equal(turned.transpose(1, 2).reshape({-1, kFrozenIn}), weights[2]));
}

// A stack as it was published: the same, through de-quantising.
TEST(FrozenFp8Test, AStackInMxfp4IsExpandedExactly) {
  constexpr int64_t kColumns = 64, kElements = kFrozenExperts * kFrozenOut * kColumns;
  UnitInfo unit{.name = "block"};
  unit.params = {
      FrozenWeight("experts.weight", kFrozenExperts * kFrozenOut, kColumns, kFrozenExperts)};
  unit.params[0].quantized = unit.params[0].mxfp4 = true;
  unit.shared_matrices = {{0}};
  const auto format = MakeMxfp4Format();
  QuantizedPart part;
  part.planes = {at::randint(256, {format->CutUnits(kElements) * kMxfp4CutUnit / 2}, at::kByte),
                 at::randint(110, 125, {format->CutUnits(kElements) * kMxfp4CutUnit / kMxfp4Block},
                             at::kByte)};
  const Tensor plain = at::empty({kFrozenExperts * kFrozenOut, kColumns});
  format->Dequantize(plain, part.planes, {});
  const auto expansion = MakeFp8Expansion(unit, *format);
  const Tensor buffer = at::empty({expansion->bytes()}, at::kByte);
  // Again: the scales are found once.
  for (const WeightUse use : {WeightUse::kForward, WeightUse::kBackward, WeightUse::kBoth}) {
    EXPECT_EQ(expansion->Fill(buffer, use, [&](int) { return part; }), use);
  }
  UnitWeights weights(unit);
  expansion->Give(buffer, weights);
  const Fp8Matrix& fp8 = weights.fp8.at(0);
  EXPECT_TRUE(at::equal(WithScales(fp8.forward, fp8.forward_scale), plain));
  const Tensor turned = WithScales(fp8.backward, fp8.backward_scale);
  EXPECT_TRUE(at::equal(turned.view({kFrozenExperts, kColumns, kFrozenOut}).transpose(1, 2),
                        plain.view({kFrozenExperts, kFrozenOut, kColumns})));
}

TEST(FrozenFp8Test, AResidentSourceGivesTheCopiesInPlaceOfTheWeights) {
  ModelLayout layout;
  layout.units = {UnitInfo{}, FrozenBlock(), UnitInfo{}};
  const UnitInfo& unit = layout.units[1];
  const UnitWeights weights = FrozenWeights(unit);
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
  const int64_t copies =
      2 * kFrozenExperts * kFrozenOut * kFrozenIn + 4 * kFrozenExperts * (kFrozenOut + kFrozenIn);
  EXPECT_EQ(source.ResidentBytes(), 4 * (kFrozenOut + 16) * kFrozenIn + copies);
}

TEST(FrozenFp8Test, ALinearOfAnotherSizeIsRefusedByName) {
  UnitInfo unit = FrozenBlock();
  UnitWeights weights(unit);
  unit.params[2] = FrozenWeight("experts.weight", kFrozenExperts * 24, kFrozenIn, kFrozenExperts);
  weights[2] = at::randn({kFrozenExperts * 24, kFrozenIn});
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
