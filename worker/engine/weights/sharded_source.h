#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/slot_pool.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Units laid flat and cut over the ranks (PartSizes: shards may differ in size or be empty); each
// Acquire gathers the whole unit into a slot. Prefetch starts the gather.
class ShardedSource : public WeightSource {
 public:
  // Borrows `layout` and `comm`, which outlive it.
  ShardedSource(const ModelLayout& layout, Communicator& comm);
  ~ShardedSource() override;

  // This rank's shard of the selected parameters of `unit`, in the type of the computation. The
  // tensor is shared: an optimizer may update it between Invalidate calls.
  void Set(int unit, FlatLayout flat, std::vector<int64_t> counts, at::Tensor shard);

  void Prefetch(int unit, WeightUse use) override;
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override;
  int64_t ResidentBytes() const override;

 private:
  struct Unit {
    FlatLayout flat;
    std::vector<int64_t> counts;
    at::Tensor shard;
    WorkPtr gather;  // under way into the unit's slot
  };

  const ModelLayout& layout_;
  Communicator& comm_;
  std::vector<Unit> units_;
  SlotPool slots_;
};

}  // namespace sft::engine
