#pragma once

#include <memory>
#include <utility>

#include "worker/engine/weights/host_optimizer.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Gives out another source's weights, each unit after the optimizer of the host has updated it.
// Thread-compatible.
class UpdatingSource : public WeightSource {
 public:
  // `source` gives out what `optimizer` updates. Borrows `optimizer`.
  UpdatingSource(std::unique_ptr<WeightSource> source, HostOptimizer& optimizer)
      : source_(std::move(source)), optimizer_(optimizer) {}

  void Prefetch(int unit, WeightUse use) override {
    optimizer_.Update(unit);
    source_->Prefetch(unit, use);
  }
  void Acquire(int unit, UnitWeights& weights) override {
    optimizer_.Update(unit);
    source_->Acquire(unit, weights);
  }
  void Release(int unit) override { source_->Release(unit); }
  void Invalidate() override { source_->Invalidate(); }
  int64_t ResidentBytes() const override { return source_->ResidentBytes(); }
  bool fixed() const override { return false; }

 private:
  std::unique_ptr<WeightSource> source_;
  HostOptimizer& optimizer_;
};

}  // namespace sft::engine
