#include "worker/engine/weights/adapted_source.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <utility>

#include "common/plan/execution.h"
#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

namespace {

// A row of zeros has no direction; its gain must be a number all the same.
constexpr double kLeastNorm = 1e-12;

}  // namespace

AdaptedSource::AdaptedSource(const ModelLayout& layout, std::unique_ptr<WeightSource> source,
                             double scale, Magnitudes magnitudes)
    : source_(std::move(source)),
      scale_(scale),
      magnitudes_(std::move(magnitudes)),
      layout_(layout),
      placed_(layout.units.size()),
      gained_(layout.units.size()) {
  for (const UnitInfo& unit : layout.units) {
    places_.emplace_back();
    for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
      MatrixInfo info = unit.Matrix(i);
      if (info.rank > 0) places_.back().push_back({i, std::move(info), {}});
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
  GiveGains(unit, weights);
}

void AdaptedSource::GiveGains(int unit, UnitWeights& weights) {
  std::vector<Place>& places = places_[unit];
  if (std::none_of(places.begin(), places.end(), [](const Place& p) { return p.info.dora; }))
    return;
  if (!gained_[unit]) {
    JoinMatrices(layout_.units[unit], weights);
    for (Place& place : places) {
      if (place.info.dora) FindGains(unit, place, weights);
    }
    gained_[unit] = true;
  }
  weights.gains.resize(layout_.units[unit].shared_matrices.size());
  for (const Place& place : places) weights.gains[place.matrix] = place.gains;
}

void AdaptedSource::FindGains(int unit, Place& place, const UnitWeights& weights) const {
  const Tensor& matrix = weights.matrices[place.matrix];
  if (!matrix.defined()) throw InternalError("DoRA's norms need weights that are not in FP8");
  const MatrixInfo& info = place.info;
  if (!place.gains.gain.defined()) {
    place.gains.gain = at::ones({info.rows}, matrix.options().dtype(at::kFloat));
    place.gains.norm = at::ones_like(place.gains.gain);
  }
  const Tensor rows = matrix.narrow(0, 0, info.rows).narrow(1, 0, info.columns);
  const int64_t most = std::max<int64_t>(plan::kNormElements / info.columns, 1);
  for (const MatrixInfo::Member& member : info.members) {
    if (member.magnitude < 0) continue;
    const Tensor a = weights[member.lora_a].to(at::kFloat);
    const Tensor b = weights[member.lora_b].to(at::kFloat);
    Tensor norm = place.gains.norm.narrow(0, member.first_row, member.rows);
    for (int64_t first = 0; first < member.rows; first += most) {
      const int64_t count = std::min(most, member.rows - first);
      Tensor sum = rows.narrow(0, member.first_row + first, count)
                       .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
      sum.addmm_(b.narrow(0, first, count), a, 1.0, scale_ * member.scale_ratio);
      norm.narrow(0, first, count).copy_(at::linalg_vector_norm(sum, 2, {1}));
    }
    norm.clamp_min_(kLeastNorm);
    Tensor gain = place.gains.gain.narrow(0, member.first_row, member.rows);
    const Tensor magnitude =
        magnitudes_ ? magnitudes_(unit, member.magnitude) : weights[member.magnitude];
    gain.copy_(magnitude.view({-1})).div_(norm);
  }
}

AdaptedSource::Factors AdaptedSource::FactorsOf(const Place& place, const UnitWeights& weights) {
  Factors factors;
  for (const MatrixInfo::Member& member : place.info.members) {
    if (member.rank == 0) continue;
    factors.a.push_back(weights[member.lora_a]);
    const Tensor& b = weights[member.lora_b];
    factors.b.push_back(member.scale_ratio == 1.0 ? b : b * member.scale_ratio);
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
    if (weights.fp8.empty()) continue;  // in NF4: the adapters' products are made apart
    Fp8Matrix& fp8 = weights.fp8[place.matrix];
    const auto without_zeros = [&](const Tensor& rows) {
      return rows.narrow(1, 0, rows.size(1) - place.info.fp8_rank() + place.info.rank);
    };
    if ((uses & static_cast<int>(WeightUse::kForward)) != 0) {
      Tensor rows = without_zeros(fp8.forward);
      ops::Fp8PlaceFactors(rows, fp8.forward_scale, factors.a, factors.b, factors.first_row, scale_,
                           /*transposed=*/false);
    }
    if ((uses & static_cast<int>(WeightUse::kBackward)) != 0) {
      Tensor rows = without_zeros(fp8.backward);
      ops::Fp8PlaceFactors(rows, fp8.backward_scale, factors.a, factors.b, factors.first_row,
                           scale_, /*transposed=*/true);
    }
  }
}

void AdaptedSource::Invalidate() {
  source_->Invalidate();
  placed_.assign(placed_.size(), 0);
  gained_.assign(gained_.size(), false);
}

}  // namespace sft::engine
