#pragma once

#include <memory>
#include <vector>

#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Gives out another source's weights with the adapters standing beside the weights they adapt
// (nn/projection.h), where that source left room. Places them when a unit was written anew and when
// the adapters changed.
class AdaptedSource : public WeightSource {
 public:
  // `scale` multiplies every adapter's product. Borrows `layout`; `source` holds weights and
  // adapters.
  AdaptedSource(const ModelLayout& layout, std::unique_ptr<WeightSource> source, double scale);

  void Prefetch(int unit) override { source_->Prefetch(unit); }
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override { source_->Release(unit); }
  void Invalidate() override;
  int64_t ResidentBytes() const override { return source_->ResidentBytes(); }

 private:
  struct Place {
    int matrix = 0;
    MatrixInfo info;
  };

  std::unique_ptr<WeightSource> source_;
  double scale_;
  const ModelLayout& layout_;
  std::vector<std::vector<Place>> places_;  // by unit: the matrices with adapters
  std::vector<bool> placed_;                // by unit: the adapters of now stand there
};

}  // namespace sft::engine
