#include "worker/engine/weights/weight_source.h"

#include <utility>

namespace sft::engine {

void ComposedSource::Prefetch(int unit) {
  for (auto& source : sources_) source->Prefetch(unit);
}

void ComposedSource::Acquire(int unit, UnitWeights& weights) {
  for (auto& source : sources_) source->Acquire(unit, weights);
}

void ComposedSource::Release(int unit) {
  for (auto& source : sources_) source->Release(unit);
}

void ComposedSource::Invalidate() {
  for (auto& source : sources_) source->Invalidate();
}

int64_t ComposedSource::ResidentBytes() const {
  int64_t bytes = 0;
  for (const auto& source : sources_) bytes += source->ResidentBytes();
  return bytes;
}

ResidentSource::ResidentSource(const ModelLayout& layout) {
  for (const UnitInfo& unit : layout.units) units_.emplace_back(unit.params.size());
}

void ResidentSource::Set(int unit, int param, at::Tensor tensor) {
  units_[unit][param] = std::move(tensor);
}

void ResidentSource::Acquire(int unit, UnitWeights& weights) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (units_[unit][i].defined()) weights[i] = units_[unit][i];
  }
}

int64_t ResidentSource::ResidentBytes() const {
  int64_t bytes = 0;
  for (const UnitWeights& unit : units_) {
    for (const at::Tensor& tensor : unit) {
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

}  // namespace sft::engine
