#include "worker/engine/weights/adapted_source.h"

#include <utility>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

AdaptedSource::AdaptedSource(const ModelLayout& layout, std::unique_ptr<WeightSource> source,
                             double scale)
    : source_(std::move(source)), scale_(scale), layout_(layout), placed_(layout.units.size()) {
  for (const UnitInfo& unit : layout.units) {
    places_.emplace_back();
    for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
      MatrixInfo info = unit.Matrix(i);
      if (info.rank > 0) places_.back().push_back({i, std::move(info)});
    }
  }
}

void AdaptedSource::Acquire(int unit, UnitWeights& weights) {
  source_->Acquire(unit, weights);
  if (places_[unit].empty()) return;
  // Plain matrices serve every use.
  const int wanted =
      weights.fp8.empty() ? static_cast<int>(WeightUse::kBoth) : static_cast<int>(weights.use);
  placed_[unit] &= ~weights.rewritten;
  const int missing = wanted & ~placed_[unit];
  if (missing != 0) PlaceAll(unit, missing, weights);
  placed_[unit] |= missing;
}

AdaptedSource::Factors AdaptedSource::FactorsOf(const Place& place, const UnitWeights& weights) {
  Factors factors;
  for (const MatrixInfo::Member& member : place.info.members) {
    if (member.rank == 0) continue;
    factors.a.push_back(weights[member.lora_a]);
    factors.b.push_back(weights[member.lora_b]);
    factors.first_row.push_back(member.first_row);
  }
  return factors;
}

void AdaptedSource::PlaceAll(int unit, int uses, UnitWeights& weights) const {
  JoinMatrices(layout_.units[unit], weights);
  for (const Place& place : places_[unit]) {
    const Factors factors = FactorsOf(place, weights);
    Tensor& matrix = weights.matrices[place.matrix];
    if (matrix.defined()) {
      if (matrix.size(1) == place.info.columns) continue;  // the source left no room
      ops::PlaceFactors(matrix, factors.a, factors.b, factors.first_row, scale_);
      continue;
    }
    Fp8Matrix& fp8 = weights.fp8[place.matrix];
    if ((uses & static_cast<int>(WeightUse::kForward)) != 0) {
      ops::Fp8PlaceFactors(fp8.forward, fp8.forward_scale, factors.a, factors.b, factors.first_row,
                           scale_, /*transposed=*/false);
    }
    if ((uses & static_cast<int>(WeightUse::kBackward)) != 0) {
      ops::Fp8PlaceFactors(fp8.backward, fp8.backward_scale, factors.a, factors.b,
                           factors.first_row, scale_, /*transposed=*/true);
    }
  }
}

void AdaptedSource::Invalidate() {
  source_->Invalidate();
  placed_.assign(placed_.size(), 0);
}

}  // namespace sft::engine
