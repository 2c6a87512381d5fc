#include "worker/engine/weights/unit_expansion.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>

#include <limits>
#include <utility>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/fp8_rows.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/weights/frozen_fp8.h"

namespace sft::engine {

namespace {

using at::Tensor;

// Every piece of a buffer starts at a multiple of it.
constexpr int64_t kAlign = 256;

int64_t Aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

class PlainExpansion : public UnitExpansion {
 public:
  PlainExpansion(const UnitInfo& unit, const QuantFormat& format, at::ScalarType compute)
      : unit_(unit), format_(format), compute_(compute), places_(unit.params.size()) {
    for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
      const MatrixInfo matrix = unit.Matrix(i);
      if (!format.Holds(unit.params[matrix.members[0].weight])) continue;
      for (const MatrixInfo::Member& member : matrix.members) {
        places_[member.weight] = {elements_ + member.first_row * matrix.stride(), matrix.stride()};
      }
      Grow(matrix.numel());
    }
    for (size_t i = 0; i < unit.params.size(); ++i) {
      const ParamInfo& param = unit.params[i];
      if (!format.Holds(param) || places_[i].begin >= 0) continue;
      places_[i] = {elements_, param.shape.back()};
      Grow(param.numel());
    }
  }

  int64_t bytes() const override { return elements_ * ElementSize(); }

  bool serves_both() const override { return true; }

  WeightUse Fill(const Tensor& buffer, WeightUse, const Bytes& quantized) override {
    const Tensor elements = buffer.view(compute_);
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].begin < 0) continue;
      const QuantizedPart part = quantized(static_cast<int>(i));
      if (part.plain.defined()) {
        View(elements, i).copy_(part.plain);
      } else {
        format_.Dequantize(View(elements, i), part.planes, part.constants);
      }
    }
    return WeightUse::kBoth;
  }

  void Give(const Tensor& buffer, UnitWeights& weights) const override {
    const Tensor elements = buffer.view(compute_);
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].begin >= 0) weights.params[i] = View(elements, i);
    }
  }

 private:
  struct Place {
    int64_t begin = -1;  // element of the buffer; -1: not quantised
    int64_t stride = 0;
  };

  int64_t ElementSize() const { return static_cast<int64_t>(c10::elementSize(compute_)); }
  void Grow(int64_t elements) {
    elements_ = Aligned((elements_ + elements) * ElementSize()) / ElementSize();
  }
  Tensor View(const Tensor& elements, size_t param) const {
    const std::vector<int64_t>& shape = unit_.params[param].shape;
    const Place& place = places_[param];
    if (shape.size() == 1) return elements.narrow(0, place.begin, shape[0]);
    return elements.as_strided(shape, {place.stride, 1}, place.begin);
  }

  const UnitInfo& unit_;
  const QuantFormat& format_;
  at::ScalarType compute_;
  std::vector<Place> places_;
  int64_t elements_ = 0;
};

class Fp8Expansion : public UnitExpansion {
 public:
  Fp8Expansion(const UnitInfo& unit, const QuantFormat& format) : unit_(unit), format_(format) {
    size_t quantized = 0, placed = 0;
    for (const ParamInfo& param : unit.params) quantized += format.Holds(param);
    for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
      const MatrixInfo info = unit.Matrix(i);
      Matrix matrix{info, unit.params[info.members[0].weight].experts, 0, 0, {}, {}};
      if (!format.Holds(unit.params[info.members[0].weight])) {
        matrices_.push_back(std::move(matrix));
        continue;
      }
      placed += info.members.size();
      matrix.forward = bytes_;
      bytes_ = Aligned(bytes_ + info.rows * ForwardStride(matrix));
      if (matrix.experts > 0) CheckFp8Sizes(unit, info);
      matrix.backward = bytes_;
      bytes_ = Aligned(bytes_ + BackwardRows(matrix) * BackwardStride(matrix));
      matrices_.push_back(std::move(matrix));
    }
    if (placed != quantized) {
      throw InternalError(unit.name + " has quantised weights that no FP8 product uses");
    }
  }

  int64_t bytes() const override { return bytes_; }

  bool serves_both() const override { return false; }

  WeightUse Fill(const Tensor& buffer, WeightUse use, const Bytes& quantized) override {
    for (Matrix& matrix : matrices_) {
      if (!IsQuantized(matrix)) continue;
      if (matrix.experts > 0) {
        FillExperts(matrix, buffer, use, quantized);
        continue;
      }
      if (!matrix.forward_scale.defined()) FindScales(matrix, quantized);
      for (const MatrixInfo::Member& member : matrix.info.members) {
        const QuantizedPart part = quantized(member.weight);
        if (Includes(use, WeightUse::kForward)) {
          Tensor rows = Forward(matrix, buffer)
                            .narrow(0, member.first_row, member.rows)
                            .narrow(1, 0, matrix.info.columns);
          WriteFp8(rows, part, matrix.forward_scale.narrow(0, member.first_row, member.rows),
                   /*transposed=*/false);
        }
        if (Includes(use, WeightUse::kBackward)) {
          Tensor columns = Backward(matrix, buffer).narrow(1, member.first_row, member.rows);
          WriteFp8(columns, part, matrix.backward_scale, /*transposed=*/true);
        }
      }
      // Other units' weights were there.
      Tensor forward = Forward(matrix, buffer), backward = Backward(matrix, buffer);
      if (Includes(use, WeightUse::kForward)) ClearBehindFactors(forward, matrix.info);
      if (Includes(use, WeightUse::kBackward)) ClearBehindFactors(backward, matrix.info);
    }
    return use;
  }

  void Give(const Tensor& buffer, UnitWeights& weights) const override {
    weights.fp8.resize(matrices_.size());  // another format's may be there
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const Matrix& matrix = matrices_[i];
      if (!IsQuantized(matrix)) continue;
      weights.fp8[i] = {Forward(matrix, buffer), matrix.forward_scale, Backward(matrix, buffer),
                        matrix.backward_scale};
    }
  }

 private:
  struct Matrix {
    MatrixInfo info;
    int64_t experts = 0;                // 0: of linears
    int64_t forward = 0, backward = 0;  // bytes of the buffer
    Tensor forward_scale, backward_scale;
  };

  bool IsQuantized(const Matrix& matrix) const {
    return format_.Holds(unit_.params[matrix.info.members[0].weight]);
  }

  static Tensor Rows(const Tensor& buffer, int64_t begin, int64_t rows, int64_t columns,
                     int64_t stride) {
    return buffer.view(at::kFloat8_e4m3fn).as_strided({rows, columns}, {stride, 1}, begin);
  }
  // Experts' rows are dense: products take their matrices as a stack.
  static int64_t ForwardStride(const Matrix& m) {
    return m.experts > 0 ? m.info.columns : plan::RowStride(m.info.columns, m.info.fp8_rank());
  }
  static int64_t BackwardRows(const Matrix& m) {
    return m.experts > 0 ? m.experts * m.info.columns : m.info.columns;
  }
  static int64_t BackwardColumns(const Matrix& m) {
    return m.experts > 0 ? m.info.rows / m.experts : m.info.rows + m.info.fp8_rank();
  }
  static int64_t BackwardStride(const Matrix& m) {
    return m.experts > 0 ? BackwardColumns(m) : plan::RowStride(m.info.rows, m.info.fp8_rank());
  }
  static Tensor Forward(const Matrix& m, const Tensor& buffer) {
    return Rows(buffer, m.forward, m.info.rows, m.info.columns + m.info.fp8_rank(),
                ForwardStride(m));
  }
  static Tensor Backward(const Matrix& m, const Tensor& buffer) {
    return Rows(buffer, m.backward, BackwardRows(m), BackwardColumns(m), BackwardStride(m));
  }

  // The whole weight in 16 bits, or as it is where it was not quantised.
  Tensor Dequantized(const MatrixInfo& info, const MatrixInfo::Member& member,
                     const QuantizedPart& part) const {
    if (part.plain.defined()) return part.plain;
    const Tensor weight =
        at::empty({member.rows, info.columns}, part.planes[0].options().dtype(at::kBFloat16));
    format_.Dequantize(weight, part.planes, part.constants);
    return weight;
  }

  void FillExperts(Matrix& matrix, const Tensor& buffer, WeightUse use,
                   const Bytes& quantized) const {
    const MatrixInfo::Member& member = matrix.info.members[0];
    const Tensor stack = Dequantized(matrix.info, member, quantized(member.weight));
    if (Includes(use, WeightUse::kForward)) {
      if (!matrix.forward_scale.defined()) matrix.forward_scale = ScalesByPowers(stack);
      Tensor rows = Forward(matrix, buffer);
      ops::Fp8QuantizeWith(rows, stack, matrix.forward_scale);
    }
    if (Includes(use, WeightUse::kBackward)) {
      Tensor rows = Backward(matrix, buffer);
      WriteTurned(stack, matrix.experts, rows, matrix.backward_scale);
    }
  }

  void WriteFp8(Tensor out, const QuantizedPart& part, const Tensor& scale, bool transposed) const {
    if (part.plain.defined()) {
      ops::Fp8QuantizeWith(out, transposed ? part.plain.t().contiguous() : part.plain, scale);
    } else {
      format_.DequantizeFp8(out, part.planes, part.constants, scale, transposed);
    }
  }

  static Tensor ScaleOf(const Tensor& largest) {
    const Tensor scale = (largest * (ops::kFp8Room / kFp8Largest)).clamp_min_(kFp8SmallestScale);
    return at::where(largest > 0, scale, 1.0f);
  }

  // Once: frozen weights keep their scales.
  void FindScales(Matrix& matrix, const Bytes& quantized) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    std::vector<Tensor> of_rows;
    Tensor of_columns;
    for (const MatrixInfo::Member& member : matrix.info.members) {
      const QuantizedPart part = quantized(member.weight);
      const Tensor weight = Dequantized(matrix.info, member, part);
      of_rows.push_back(at::linalg_vector_norm(weight, kInfinity, {1}, false, at::kFloat));
      const Tensor columns = at::linalg_vector_norm(weight, kInfinity, {0}, false, at::kFloat);
      of_columns = of_columns.defined() ? at::maximum(of_columns, columns) : columns;
    }
    matrix.forward_scale = ScaleOf(at::cat(of_rows));
    matrix.backward_scale = ScaleOf(of_columns);
  }

  const UnitInfo& unit_;
  const QuantFormat& format_;
  std::vector<Matrix> matrices_;
  int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<UnitExpansion> MakePlainExpansion(const UnitInfo& unit, const QuantFormat& format,
                                                  at::ScalarType compute) {
  return std::make_unique<PlainExpansion>(unit, format, compute);
}

std::unique_ptr<UnitExpansion> MakeFp8Expansion(const UnitInfo& unit, const QuantFormat& format) {
  return std::make_unique<Fp8Expansion>(unit, format);
}

}  // namespace sft::engine
