#pragma once

#include <memory>
#include <set>
#include <string>

#include "worker/engine/train/base_weights.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Marks the linear layers of `layout` that generation keeps in NF4 as quantised: those that share
// a matrix of whole blocks a row, and none of which is named in `as_they_are`.
void MarkNf4(ModelLayout& layout, const std::set<std::string>& as_they_are);

// Linear layers in NF4 as products read them (UnitWeights::nf4), with the absmax in fp32. What the
// files hold in NF4 is taken as it is; of other weights the absmax is that of a second
// quantisation, as training has it.
class Nf4Weights : public WeightSource {
 public:
  // Reads the parameters of `layout` that are quantised.
  Nf4Weights(const ModelLayout& layout, const BaseWeights& base);

  void Prefetch(int, WeightUse) override {}
  void Acquire(int unit, UnitWeights& weights) override { weights.nf4 = matrices_[unit]; }
  void Release(int) override {}
  void Invalidate() override {}  // frozen
  int64_t ResidentBytes() const override;
  bool fixed() const override { return true; }

 private:
  std::vector<std::vector<Nf4Matrix>> matrices_;  // by unit and shared matrix
};

}  // namespace sft::engine
