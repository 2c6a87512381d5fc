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
  if (placed_[unit] && !weights.rewritten) return;
  placed_[unit] = true;
  if (places_[unit].empty()) return;
  JoinMatrices(layout_.units[unit], weights);
  for (const Place& place : places_[unit]) {
    Tensor& matrix = weights.matrices[place.matrix];
    if (matrix.size(1) == place.info.columns) continue;  // the source left no room
    std::vector<Tensor> a, b;
    std::vector<int64_t> first_row;
    for (const MatrixInfo::Member& member : place.info.members) {
      if (member.rank == 0) continue;
      a.push_back(weights[member.lora_a]);
      b.push_back(weights[member.lora_b]);
      first_row.push_back(member.first_row);
    }
    ops::PlaceFactors(matrix, a, b, first_row, scale_);
  }
}

void AdaptedSource::Invalidate() {
  source_->Invalidate();
  placed_.assign(placed_.size(), false);
}

}  // namespace sft::engine
