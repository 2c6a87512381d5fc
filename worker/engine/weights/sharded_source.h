#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/side_stream.h"
#include "worker/engine/weights/slot_pool.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Units laid flat and cut over the ranks (PartSizes: shards may differ in size or be empty); each
// Acquire gathers the whole unit into a slot. Prefetch starts the gather. A shard may lie in pinned
// host memory and is then copied to the device first; that of one rank alone is the unit.
class ShardedSource : public WeightSource {
 public:
  // Borrows `layout` and `comm`, which outlive it.
  ShardedSource(const ModelLayout& layout, Communicator& comm);
  ~ShardedSource() override;

  // This rank's shard of the selected parameters of `unit`, in the type of the computation. The
  // tensor is shared: an optimizer may update it between Invalidate calls. `on_host`: it lies
  // there.
  void Set(int unit, FlatLayout flat, std::vector<int64_t> counts, at::Tensor shard,
           bool on_host = false);

  void Prefetch(int unit, WeightUse use) override;
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override;
  int64_t ResidentBytes() const override;
  bool fixed() const override { return false; }

 private:
  struct Unit {
    FlatLayout flat;
    std::vector<int64_t> counts;
    at::Tensor shard;
    bool on_host = false;
    bool under_way = false;  // into the unit's slot, which is pinned
    at::Tensor staged;       // a shard of the host, on the device
    WorkPtr gather;          // null where a shard is the unit
  };

  void StartFromHost(Unit& unit, const at::Tensor& slot);
  // The computation goes on after what is under way.
  void Finish(Unit& unit);

  const ModelLayout& layout_;
  Communicator& comm_;
  std::vector<Unit> units_;
  SlotPool slots_;
  SideStream side_;
};

}  // namespace sft::engine
