#include "worker/engine/weights/frozen_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/fp8_rows.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr int64_t kMultiple = 16;                       // of the sizes of an FP8 product
constexpr int64_t kTurnedElements = int64_t{32} << 20;  // that are turned at a time

// Rows in FP8 with room for the adapters in each.
Tensor EmptyRowsInFp8(int64_t rows, int64_t columns, const MatrixInfo& matrix, const Tensor& like) {
  const int64_t stride = plan::RowStride(columns, matrix.fp8_rank());
  Tensor wide = at::empty({rows, stride}, like.options().dtype(at::kFloat8_e4m3fn))
                    .narrow(1, 0, columns + matrix.fp8_rank());
  ClearBehindFactors(wide, matrix);
  return wide;
}
Tensor EmptyScales(int64_t rows, const Tensor& like) {
  return at::empty({rows}, like.options().dtype(at::kFloat));
}

Fp8Matrix OfLinears(const MatrixInfo& matrix, const Tensor& weight) {
  const int64_t rows = matrix.rows, columns = matrix.columns;
  Fp8Matrix copies;
  copies.forward = EmptyRowsInFp8(rows, columns, matrix, weight);
  copies.forward_scale = EmptyScales(rows, weight);
  Tensor forward = copies.forward.narrow(1, 0, columns);
  ops::Fp8Quantize(forward, copies.forward_scale, weight);
  copies.backward = EmptyRowsInFp8(columns, rows, matrix, weight);
  copies.backward_scale = EmptyScales(columns, weight);
  Tensor backward = copies.backward.narrow(1, 0, rows);
  ops::Fp8QuantizeColumns(backward, copies.backward_scale, weight);
  return copies;
}

// The least power of two that is not below x, which is normal and positive.
Tensor PowerOfTwoAbove(const Tensor& x) {
  constexpr int32_t kMantissa = 0x7fffff, kExponent = 0x7f800000;
  return at::bitwise_and(x.view(at::kInt).add(kMantissa), kExponent).view(at::kFloat);
}

Fp8Matrix OfExperts(int64_t experts, const Tensor& stack) {
  const int64_t columns = stack.size(1);
  const at::TensorOptions fp8 = stack.options().dtype(at::kFloat8_e4m3fn);
  Fp8Matrix copies;
  copies.forward = at::empty(stack.sizes(), fp8);
  copies.forward_scale = ScalesByPowers(stack);
  ops::Fp8QuantizeWith(copies.forward, stack, copies.forward_scale);
  copies.backward = at::empty({experts * columns, stack.size(0) / experts}, fp8);
  WriteTurned(stack, experts, copies.backward, copies.backward_scale);
  return copies;
}

}  // namespace

void ClearBehindFactors(Tensor& rows, const MatrixInfo& matrix) {
  const int64_t count = matrix.fp8_rank() - matrix.rank;
  if (count > 0) rows.narrow(1, rows.size(1) - count, count).view(at::kByte).zero_();
}

void CheckFp8Sizes(const UnitInfo& unit, const MatrixInfo& matrix) {
  for (const MatrixInfo::Member& member : matrix.members) {
    const ParamInfo& weight = unit.params[member.weight];
    const int64_t outputs = weight.experts > 0 ? member.rows / weight.experts : member.rows;
    if (outputs % kMultiple == 0 && matrix.columns % kMultiple == 0) continue;
    throw UserError(
        fmt::format("products in FP8 need multiples of {}, and {} has {} outputs and {} inputs",
                    kMultiple, weight.name, outputs, matrix.columns),
        "no_fp8", "set training.matmul = \"bf16\"");
  }
}

Tensor ScalesByPowers(const Tensor& rows) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor largest = at::linalg_vector_norm(rows, kInfinity, {1}, false, at::kFloat);
  const Tensor least = largest.div(kFp8Largest).clamp_min_(kFp8SmallestScale);
  return at::where(largest > 0, PowerOfTwoAbove(least), 1.0F);
}

void WriteTurned(const Tensor& stack, int64_t experts, Tensor& rows, Tensor& scale) {
  const int64_t columns = stack.size(1);
  const Tensor matrices = stack.reshape({experts, -1, columns});
  const bool known = scale.defined();
  if (!known) scale = EmptyScales(rows.size(0), stack);
  const int64_t most = std::max<int64_t>(kTurnedElements / matrices[0].numel(), 1);
  for (int64_t first = 0; first < experts; first += most) {
    const int64_t count = std::min(most, experts - first);
    const Tensor turned = matrices.narrow(0, first, count).transpose(1, 2).contiguous();
    const Tensor part = turned.view({count * columns, -1});
    Tensor out = rows.narrow(0, first * columns, count * columns);
    Tensor of_part = scale.narrow(0, first * columns, count * columns);
    if (!known) of_part.copy_(ScalesByPowers(part));
    ops::Fp8QuantizeWith(out, part, of_part);
  }
}

std::vector<Fp8Matrix> MakeFrozenFp8(const UnitInfo& unit, UnitWeights weights) {
  JoinMatrices(unit, weights);
  std::vector<Fp8Matrix> copies(weights.matrices.size());
  for (size_t i = 0; i < copies.size(); ++i) {
    const Tensor& whole = weights.matrices[i];
    if (!whole.defined()) continue;
    const MatrixInfo matrix = unit.Matrix(static_cast<int>(i));
    CheckFp8Sizes(unit, matrix);
    const Tensor weight = whole.narrow(0, 0, matrix.rows).narrow(1, 0, matrix.columns);
    const int64_t experts = unit.params[matrix.members[0].weight].experts;
    copies[i] = experts > 0 ? OfExperts(experts, weight) : OfLinears(matrix, weight);
  }
  return copies;
}

}  // namespace sft::engine
