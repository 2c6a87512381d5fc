#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Float8 rows in a wider buffer of bytes, all of which are 0x2a.
struct Fp8Buffer {
  Fp8Buffer(int64_t rows, int64_t width)
      : bytes(at::full({rows, width + 11}, 0x2a, at::kByte)),
        rows(bytes.view(at::kFloat8_e4m3fn).narrow(1, 3, width)) {}
  Tensor values() const { return rows.to(at::kFloat); }
  // Of the rows, for comparison bit by bit.
  Tensor bits() const { return bytes.narrow(1, 3, rows.size(1)); }
  bool GapIsUntouched() const {
    return (bytes.narrow(1, 0, 3) == 0x2a).all().item<bool>() &&
           (bytes.narrow(1, 3 + rows.size(1), 8) == 0x2a).all().item<bool>();
  }
  Tensor bytes, rows;
};

// x / scale of its row, as float8; LibTorch's conversion rounds to nearest even but does not
// saturate.
Tensor Expected(const Tensor& x, const Tensor& scale) {
  return (x * scale.reciprocal().unsqueeze(1))
      .clamp(-448.0, 448.0)
      .to(at::kFloat8_e4m3fn)
      .view(at::kByte);
}

float Converted(float x) {
  Fp8Buffer out(1, 1);
  ops::Fp8QuantizeWith(out.rows, at::full({1, 1}, x, at::kFloat), at::ones({1}));
  return out.values().item<float>();
}

TEST(Fp8Test, QuantisedRowsAreWithinHalfAStepOfTheInput) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    // Rows of all magnitudes, in a wider buffer.
    const Tensor x = (Random({12, 317}, 1) * at::logspace(-30, 30, 12, 10.0).unsqueeze(1)).to(type);
    Tensor wide = at::full({12, 330}, 1e38, type);
    wide.narrow(1, 5, 317).copy_(x);
    Fp8Buffer out(12, 317);
    Tensor scale = at::zeros({12});
    ops::Fp8Quantize(out.rows, scale, wide.narrow(1, 5, 317));
    const Tensor plain = x.to(at::kFloat);
    EXPECT_TRUE(at::allclose(scale, std::get<0>(plain.abs().max(1)) * (4.0 / 448.0), 1e-6, 0.0));
    const Tensor error = (out.values() * scale.unsqueeze(1) - plain).abs();
    const Tensor half_step =
        at::maximum(plain.abs() / 16.0, scale.unsqueeze(1) * std::ldexp(1.0, -10));
    EXPECT_TRUE((error <= half_step * 1.0001).all().item<bool>()) << type;
    EXPECT_NEAR(out.values().abs().max().item<float>(), 112.0, 1e-6) << "448 / the room";
    EXPECT_TRUE(out.GapIsUntouched());
  }
}

TEST(Fp8Test, ColumnsAreTheRowsOfTheTransposeAndZerosBeyond) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    Tensor wide = at::full({37, 30}, 1e38, type);
    Tensor x = wide.narrow(1, 5, 24);
    x.copy_(Random({37, 24}, 1) * at::logspace(-30, 30, 24, 10.0));
    x.select(1, 3).zero_();
    Fp8Buffer columns(24, 48), rows(24, 37);
    Tensor scale = at::zeros({24}), expected = at::zeros({24});
    ops::Fp8QuantizeColumns(columns.rows, scale, x);
    ops::Fp8Quantize(rows.rows, expected, x.t().contiguous());
    EXPECT_TRUE(at::equal(scale, expected)) << type;
    EXPECT_TRUE(at::equal(columns.bits().narrow(1, 0, 37), rows.bits())) << type;
    EXPECT_TRUE((columns.bits().narrow(1, 37, 11) == 0).all().item<bool>()) << type;
    EXPECT_TRUE(columns.GapIsUntouched());
  }
  Fp8Buffer narrow(24, 36), low(23, 48);
  Tensor scale = at::zeros({24}), few = at::zeros({23});
  EXPECT_THROW(ops::Fp8QuantizeColumns(narrow.rows, scale, at::ones({37, 24})), c10::Error);
  EXPECT_THROW(ops::Fp8QuantizeColumns(low.rows, few, at::ones({37, 24})), c10::Error);
}

TEST(Fp8Test, EveryFloat8ConvertsToItself) {
  const Tensor all = at::arange(0, 256, at::kInt).to(at::kByte).view({1, 256});
  Fp8Buffer out(1, 256);
  ops::Fp8QuantizeWith(out.rows, all.view(at::kFloat8_e4m3fn).to(at::kFloat), at::ones({1}));
  Tensor expected = all.clone();
  expected[0][0xff] = 0x7f;  // one NaN
  EXPECT_TRUE(at::equal(out.bits(), expected));
}

TEST(Fp8Test, ConversionRoundsToNearestEvenAndSaturates) {
  EXPECT_EQ(Converted(17.0f), 16.0f);
  EXPECT_EQ(Converted(19.0f), 20.0f);
  EXPECT_EQ(Converted(17.001f), 18.0f);
  EXPECT_EQ(Converted(std::ldexp(1.0f, -10)), 0.0f);
  EXPECT_EQ(Converted(std::ldexp(3.0f, -10)), std::ldexp(2.0f, -9));
  EXPECT_EQ(Converted(448.0f), 448.0f);
  EXPECT_EQ(Converted(470.0f), 448.0f);
  EXPECT_EQ(Converted(-1e30f), -448.0f);
  EXPECT_EQ(Converted(kInfinity), 448.0f);
  EXPECT_EQ(Converted(-kInfinity), -448.0f);
  EXPECT_TRUE(std::isnan(Converted(std::nanf(""))));
}

TEST(Fp8Test, RowsOfZerosHaveScaleOneAndTinyRowsAFiniteResult) {
  Tensor x = at::zeros({3, 8});
  x[1].fill_(1e-44);
  x[2][3] = -kInfinity;
  Fp8Buffer out(3, 8);
  Tensor scale = at::zeros({3});
  ops::Fp8Quantize(out.rows, scale, x);
  EXPECT_EQ(scale[0].item<float>(), 1.0f);
  EXPECT_TRUE(at::equal(out.values().narrow(0, 0, 2), at::zeros({2, 8})));
  EXPECT_GT(scale[1].item<float>(), 0.0f);
  EXPECT_TRUE(std::isnan(out.values()[2][3].item<float>())) << "an infinity must not go unseen";
}

TEST(Fp8Test, GivenScalesAreUsedAndLargeValuesSaturate) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Tensor x = (Random({9, 48}, 2) * 100).to(type);
    const Tensor scale = at::linspace(0.05, 3.0, 9, at::kFloat);
    Fp8Buffer out(9, 48);
    ops::Fp8QuantizeWith(out.rows, x, scale);
    EXPECT_TRUE(at::equal(out.bits(), Expected(x.to(at::kFloat), scale)));
    EXPECT_EQ(out.values().abs().max().item<float>(), 448.0f);
    EXPECT_TRUE(out.GapIsUntouched());
  }
}

// Random rows, of which the third is zero.
Tensor RowsWithZeros(int64_t width, int seed, at::ScalarType type) {
  Tensor x = Random({9, width}, seed);
  x[2].zero_();
  return x.to(type);
}

// FP8 rows with columns to spare, as an operation gets them beside the rows that it makes.
struct MadeToo {
  explicit MadeToo(int64_t width) : buffer(9, width) {}
  ops::Fp8Rows fp8() const { return {buffer.rows, scale}; }
  // That they are what quantising `rows` afterwards gives, and nothing else was written.
  void Expect(const Tensor& rows) const {
    Fp8Buffer expected(9, rows.size(1));
    Tensor expected_scale = at::zeros({9});
    ops::Fp8Quantize(expected.rows, expected_scale, rows);
    EXPECT_TRUE(at::equal(buffer.bytes, expected.bytes)) << rows.scalar_type() << rows.sizes();
    EXPECT_TRUE(at::equal(scale, expected_scale)) << rows.scalar_type() << rows.sizes();
    EXPECT_EQ(scale[2].item<float>(), 1.0f) << "a row of zeros";
  }
  Fp8Buffer buffer;
  Tensor scale = at::zeros({9});
};

TEST(Fp8Test, WhatNormsAndGluMakeInFp8TooIsTheirRowsQuantised) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {1, 7, 64, 317}) {
      const Tensor x = RowsWithZeros(width, 1, type), weight = Random({width}, 2).to(type);
      const Tensor dy = RowsWithZeros(width, 3, type), residual = RowsWithZeros(width, 4, type);
      const Tensor gate_up = RowsWithZeros(2 * width, 5, type);
      Tensor y = at::empty_like(x), plain_y = at::empty_like(x);
      const MadeToo normed(width), gradient(width), activated(width);
      const Tensor rstd = ops::RmsNorm(y, x, weight, 1e-6, normed.fp8());
      EXPECT_TRUE(at::equal(rstd, ops::RmsNorm(plain_y, x, weight, 1e-6)));
      EXPECT_TRUE(at::equal(y, plain_y));
      normed.Expect(y);
      Tensor dx = residual.clone(), plain_dx = at::empty_like(x);
      const Tensor dw = ops::RmsNormBackward(dx, dy, x, weight, rstd, plan::NormKind::kRms, dx,
                                             /*need_weight_grad=*/true, gradient.fp8());
      EXPECT_TRUE(at::equal(dw, ops::RmsNormBackward(plain_dx, dy, x, weight, rstd,
                                                     plan::NormKind::kRms, residual, true)));
      EXPECT_TRUE(at::equal(dx, plain_dx));
      gradient.Expect(dx);
      Tensor out = at::empty_like(x), plain_out = at::empty_like(x);
      ops::Glu(out, gate_up, plan::ActivationKind::kSilu, activated.fp8());
      ops::Glu(plain_out, gate_up, plan::ActivationKind::kSilu);
      EXPECT_TRUE(at::equal(out, plain_out));
      activated.Expect(out);
    }
  }
}

TEST(Fp8Test, Nf4WeightsAreDequantisedDividedAndTransposed) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 128}, {192, 64}, {300, 272}, {37, 101}, {5, 3}, {1, 1}}) {
    const auto [codes, absmax] = ops::Nf4Quantize(Random({rows * columns}, 3) * 0.02);
    const auto nested = ops::AbsmaxQuantize(absmax);
    for (const bool is_nested : {false, true}) {
      Tensor weight = at::empty({rows, columns});
      const Tensor& maxima = is_nested ? nested.codes : absmax;
      const Tensor nested_absmax = is_nested ? nested.nested_absmax : Tensor();
      const Tensor offset = is_nested ? nested.offset : Tensor();
      if (is_nested) {
        ops::Nf4DequantizeNested(weight, codes, maxima, nested_absmax, offset);
      } else {
        ops::Nf4Dequantize(weight, codes, maxima);
      }
      const Tensor row_scale = at::rand({rows}, at::detail::createCPUGenerator(4)) * 1e-3 + 1e-4;
      Fp8Buffer out(rows, columns);
      ops::Fp8FromNf4(out.rows, codes, maxima, nested_absmax, offset, row_scale, false);
      EXPECT_TRUE(at::equal(out.bits(), Expected(weight, row_scale))) << rows << "x" << columns;
      EXPECT_TRUE(out.GapIsUntouched());
      const Tensor scale = at::rand({columns}, at::detail::createCPUGenerator(5)) * 1e-3 + 1e-4;
      Fp8Buffer turned(columns, rows);
      ops::Fp8FromNf4(turned.rows, codes, maxima, nested_absmax, offset, scale, true);
      EXPECT_TRUE(at::equal(turned.bits(), Expected(weight.t(), scale))) << rows << "x" << columns;
      EXPECT_TRUE(turned.GapIsUntouched());
    }
  }
}

TEST(Fp8Test, PlaceFactorsPutsEachMemberBesideItsRows) {
  // Two of three members of a fused weight, which leave rows 5 to 7 to none.
  const int64_t rows = 12, columns = 7, rank = 5;
  const std::vector<int64_t> first_row = {0, 8};
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    std::vector<Tensor> a, b;
    for (const int64_t r : {2, 3}) {
      a.push_back(Random({r, columns + 4}, 1).to(type).narrow(1, 2, columns));
      b.push_back(Random({r == 2 ? 5 : 4, r}, 2).to(type));
    }
    Tensor beside = at::zeros({rows, rank});
    beside.narrow(0, 0, 5).narrow(1, 0, 2).copy_(b[0].to(at::kFloat) * 1.5);
    beside.narrow(0, 8, 4).narrow(1, 2, 3).copy_(b[1].to(at::kFloat) * 1.5);
    const Tensor row_scale = at::linspace(0.01, 2.0, rows, at::kFloat);
    Fp8Buffer matrix(rows, columns + rank);
    ops::Fp8PlaceFactors(matrix.rows, row_scale, a, b, first_row, 1.5, false);
    EXPECT_TRUE(at::equal(matrix.bits().narrow(1, columns, rank), Expected(beside, row_scale)));
    EXPECT_TRUE((matrix.bits().narrow(1, 0, columns) == 0x2a).all().item<bool>());
    EXPECT_TRUE(matrix.GapIsUntouched());

    const Tensor scale = at::linspace(0.01, 2.0, columns, at::kFloat);
    const Tensor turned = at::cat({a[0], a[1]}).t().to(at::kFloat);
    Fp8Buffer transposed(columns, rows + rank);
    ops::Fp8PlaceFactors(transposed.rows, scale, a, b, first_row, 1.5, true);
    EXPECT_TRUE(at::equal(transposed.bits().narrow(1, rows, rank), Expected(turned, scale)));
    EXPECT_TRUE((transposed.bits().narrow(1, 0, rows) == 0x2a).all().item<bool>());
    EXPECT_TRUE(transposed.GapIsUntouched());
  }
}

TEST(Fp8Test, RefusesShapesAndTypesThatDoNotFit) {
  Fp8Buffer out(4, 64);
  const Tensor x = Random({4, 64}, 1);
  Tensor scale = at::ones({4}), short_scale = at::ones({3}), not_float8 = at::empty({4, 64});
  EXPECT_THROW(ops::Fp8Quantize(out.rows, short_scale, x), c10::Error);
  EXPECT_THROW(ops::Fp8Quantize(not_float8, scale, x), c10::Error);
  EXPECT_THROW(ops::Fp8QuantizeWith(out.rows, x.to(at::kDouble), scale), c10::Error);
  EXPECT_THROW(ops::Fp8QuantizeWith(out.rows, Random({4, 63}, 1), scale), c10::Error);
  Tensor y = at::empty({4, 64});
  EXPECT_THROW(
      ops::Glu(y, Random({4, 128}, 1), plan::ActivationKind::kSilu, {out.rows, short_scale}),
      c10::Error);
  EXPECT_THROW(ops::Glu(y, Random({4, 128}, 1), plan::ActivationKind::kSilu, {out.rows, {}}),
               c10::Error);
  EXPECT_THROW(ops::RmsNorm(y, x, at::ones({64}), 1e-6, {not_float8, scale}), c10::Error);
  const auto [codes, absmax] = ops::Nf4Quantize(Random({4 * 64}, 3));
  const auto nested = ops::AbsmaxQuantize(absmax);
  EXPECT_THROW(
      ops::Fp8FromNf4(out.rows, codes, absmax, nested.nested_absmax, nested.offset, scale, false),
      c10::Error);
  EXPECT_THROW(ops::Fp8FromNf4(out.rows, codes, nested.codes, {}, {}, scale, false), c10::Error);
  EXPECT_THROW(ops::Fp8FromNf4(out.rows, codes.narrow(0, 0, 100), absmax, {}, {}, scale, false),
               c10::Error);
  const std::vector<Tensor> a = {at::ones({2, 62})}, b = {at::ones({3, 2})};
  EXPECT_THROW(ops::Fp8PlaceFactors(out.rows, scale, a, b, {2}, 1.0, false), c10::Error);
  EXPECT_THROW(ops::Fp8PlaceFactors(out.rows, scale, a, b, {0}, 1.0, true), c10::Error);
  EXPECT_THROW(ops::Fp8PlaceFactors(out.rows, scale, {at::ones({2, 60})}, b, {0}, 1.0, false),
               c10::Error);
}

}  // namespace
}  // namespace sft::engine
