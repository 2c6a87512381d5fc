#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/engine/weights/layout.h"

namespace sft::engine {

// A unit's parameters in the type of the computation, by position in UnitInfo::params. A parameter
// that no source holds is undefined.
using UnitWeights = std::vector<at::Tensor>;

// Where a unit's weights come from: resident, gathered from shards, de-quantised, and what a later
// source adds (streamed from the host). The model acquires a unit, computes, releases it, and says
// which unit it will want next. Sources that communicate do so in Prefetch or Acquire, so every
// rank must walk the units in the same order.
//
// Thread-compatible: one thread of the rank walks.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Starts what can be started for `unit`; does not wait. Optional before Acquire.
  virtual void Prefetch(int unit) = 0;
  // Puts this source's parameters of `unit` into `weights` (sized by the caller). They stay valid
  // and unchanged until the matching Release. A unit may be acquired more than once; at most
  // SlotPool::kSlots units are acquired at a time.
  virtual void Acquire(int unit, UnitWeights& weights) = 0;
  virtual void Release(int unit) = 0;
  // The weights were updated: nothing kept from before may be given out any more.
  virtual void Invalidate() = 0;
  // Bytes that stay allocated between steps.
  virtual int64_t ResidentBytes() const = 0;
};

// Several sources, each with some of the parameters.
class ComposedSource : public WeightSource {
 public:
  void Add(std::unique_ptr<WeightSource> source) { sources_.push_back(std::move(source)); }

  void Prefetch(int unit) override;
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override;
  int64_t ResidentBytes() const override;

 private:
  std::vector<std::unique_ptr<WeightSource>> sources_;
};

// Tensors that are simply there. They may be views of storage that an optimizer updates in place.
class ResidentSource : public WeightSource {
 public:
  explicit ResidentSource(const ModelLayout& layout);
  void Set(int unit, int param, at::Tensor tensor);

  void Prefetch(int) override {}
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int) override {}
  void Invalidate() override {}
  int64_t ResidentBytes() const override;

 private:
  std::vector<UnitWeights> units_;
};

// Acquires a unit for a scope.
class AcquiredUnit {
 public:
  AcquiredUnit(WeightSource& source, const ModelLayout& layout, int unit)
      : source_(source), unit_(unit), weights_(layout.units[unit].params.size()) {
    source_.Acquire(unit, weights_);
  }
  ~AcquiredUnit() { source_.Release(unit_); }
  AcquiredUnit(const AcquiredUnit&) = delete;
  AcquiredUnit& operator=(const AcquiredUnit&) = delete;

  const UnitWeights& weights() const { return weights_; }

 private:
  WeightSource& source_;
  int unit_;
  UnitWeights weights_;
};

}  // namespace sft::engine
