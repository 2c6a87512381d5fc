#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Gives out another source's weights with the adapters standing beside the weights they adapt
// (nn/projection.h), where that source left room. Places them when a unit was written anew and when
// the adapters changed. Of adapters with magnitudes (DoRA) it gives the rows' gains, worked out
// when the adapters changed.
class AdaptedSource : public WeightSource {
 public:
  // A magnitude in fp32: the type of the computation would keep it from moving by small steps.
  // Called once for each after the adapters have changed, by all ranks in one order.
  using Magnitudes = std::function<at::Tensor(int unit, int param)>;

  // `scale` multiplies every adapter's product, beside its own ratio. Borrows `layout`; `source`
  // holds weights and adapters. Without `magnitudes` it has those, too, as they are used.
  AdaptedSource(const ModelLayout& layout, std::unique_ptr<WeightSource> source, double scale,
                Magnitudes magnitudes = nullptr);

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
    RowGains gains;  // made at the first use, and kept where they lie
  };

  // The tensors of one matrix's adapters.
  struct Factors {
    std::vector<at::Tensor> a, b;
    std::vector<int64_t> first_row;
  };
  static Factors FactorsOf(const Place& place, const UnitWeights& weights);
  void PlaceAll(int unit, int uses, UnitWeights& weights) const;
  // Gives the gains of a unit's matrices, up to date.
  void GiveGains(int unit, UnitWeights& weights);
  // Writes the norms of the rows of W + s B A, and the gains.
  void FindGains(int unit, Place& place, const UnitWeights& weights) const;

  std::unique_ptr<WeightSource> source_;
  double scale_;
  Magnitudes magnitudes_;
  const ModelLayout& layout_;
  std::vector<std::vector<Place>> places_;  // by unit: the matrices with adapters
  std::vector<int> placed_;   // by unit, bits of WeightUse: where the adapters of now stand
  std::vector<bool> gained_;  // by unit: the gains are those of now
};

}  // namespace sft::engine
