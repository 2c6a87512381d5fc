#include "worker/engine/weights/fp8_source.h"

#include <ATen/ops/empty.h>

#include <tuple>
#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/weights/frozen_fp8.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Float8 rows and their scales, uninitialised.
std::pair<Tensor, Tensor> EmptyFp8(int64_t rows, int64_t columns, const at::TensorOptions& like) {
  return {at::empty({rows, columns}, like.dtype(at::kFloat8_e4m3fn)),
          at::empty({rows}, like.dtype(at::kFloat))};
}

}  // namespace

Fp8Source::Fp8Source(const ModelLayout& layout, std::unique_ptr<WeightSource> source,
                     const Options& options, const at::Device& device)
    : layout_(layout),
      source_(std::move(source)),
      weight_gradients_(options.weight_gradients),
      units_(layout.units.size()) {
  for (int unit = 0; unit < layout.size(); ++unit) {
    if (!layout.is_block(unit)) continue;
    Unit& u = units_[unit];
    const UnitInfo& info = layout.units[unit];
    u.matrices.resize(info.shared_matrices.size());
    u.keeps = options.run.BlockOf(unit - 1, layout.blocks()).copy == plan::WeightCopy::kKept;
    for (int i = 0; i < static_cast<int>(u.matrices.size()); ++i) {
      const MatrixInfo matrix = info.Matrix(i);
      CheckFp8Sizes(info, matrix);
      Fp8Matrix& copies = u.matrices[i];
      copies.weight_gradient = weight_gradients_;
      if (!u.keeps) continue;
      // Here, so that no recording owns them (kernels/graph.h).
      std::tie(copies.forward, copies.forward_scale) =
          EmptyFp8(matrix.rows, matrix.columns, at::TensorOptions(device));
      std::tie(copies.backward, copies.backward_scale) =
          EmptyFp8(matrix.columns, matrix.rows, at::TensorOptions(device));
    }
  }
}

void Fp8Source::Fill(Unit& u, const UnitWeights& weights) const {
  const int missing = static_cast<int>(weights.use) & ~u.filled;
  const bool forward = Includes(static_cast<WeightUse>(missing), WeightUse::kForward);
  const bool backward = Includes(static_cast<WeightUse>(missing), WeightUse::kBackward);
  for (size_t i = 0; missing != 0 && i < u.matrices.size(); ++i) {
    const Tensor& matrix = weights.matrices[i];
    Fp8Matrix& copies = u.matrices[i];
    const int64_t rows = matrix.size(0), columns = matrix.size(1);
    if (forward) {
      if (!copies.forward.defined()) {
        std::tie(copies.forward, copies.forward_scale) = EmptyFp8(rows, columns, matrix.options());
      }
      ops::Fp8Quantize(copies.forward, copies.forward_scale, matrix);
    }
    if (backward) {
      if (!copies.backward.defined()) {
        std::tie(copies.backward, copies.backward_scale) =
            EmptyFp8(columns, rows, matrix.options());
      }
      ops::Fp8QuantizeColumns(copies.backward, copies.backward_scale, matrix);
    }
  }
  u.filled |= missing;
}

void Fp8Source::Acquire(int unit, UnitWeights& weights) {
  source_->Acquire(unit, weights);
  if (!layout_.is_block(unit)) return;
  Unit& u = units_[unit];
  ++u.acquired;
  JoinMatrices(layout_.units[unit], weights);
  Fill(u, weights);
  weights.fp8 = u.matrices;
}

void Fp8Source::Release(int unit) {
  source_->Release(unit);
  Unit& u = units_[unit];
  if (!layout_.is_block(unit) || --u.acquired > 0 || u.keeps) return;
  u.filled = 0;
  for (Fp8Matrix& copies : u.matrices) copies = {.weight_gradient = weight_gradients_};
}

void Fp8Source::Invalidate() {
  source_->Invalidate();
  for (Unit& unit : units_) unit.filled = 0;
}

int64_t Fp8Source::ResidentBytes() const {
  int64_t bytes = source_->ResidentBytes();
  for (const Unit& unit : units_) {
    if (!unit.keeps) continue;
    for (const Fp8Matrix& copies : unit.matrices) {
      for (const Tensor& each :
           {copies.forward, copies.forward_scale, copies.backward, copies.backward_scale}) {
        bytes += static_cast<int64_t>(each.nbytes());
      }
    }
  }
  return bytes;
}

bool Fp8Source::fixed() const {
  if (!source_->fixed()) return false;
  for (int unit = 0; unit < layout_.size(); ++unit) {
    if (layout_.is_block(unit) && !units_[unit].keeps) return false;
  }
  return true;
}

}  // namespace sft::engine
