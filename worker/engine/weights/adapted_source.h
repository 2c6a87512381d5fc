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

  void Prefetch(int unit, WeightUse use) override { source_->Prefetch(unit, use); }
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override { source_->Release(unit); }
  void Invalidate() override;
  int64_t ResidentBytes() const override { return source_->ResidentBytes(); }
  bool fixed() const override { return source_->fixed(); }

 private:
  struct Place {
    int matrix = 0;
    MatrixInfo info;
  };

  // The tensors of one matrix's adapters.
  struct Factors {
    std::vector<at::Tensor> a, b;
    std::vector<int64_t> first_row;
  };
  static Factors FactorsOf(const Place& place, const UnitWeights& weights);
  void PlaceAll(int unit, int uses, UnitWeights& weights) const;

  std::unique_ptr<WeightSource> source_;
  double scale_;
  const ModelLayout& layout_;
  std::vector<std::vector<Place>> places_;  // by unit: the matrices with adapters
  std::vector<int> placed_;  // by unit, bits of WeightUse: where the adapters of now stand
};

}  // namespace sft::engine
