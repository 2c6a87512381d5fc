#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// The split of trained weights and optimizer states over the data-parallel ranks.
enum class Placement {
  kReplicated,        // DDP: weights and optimizer states whole on every rank
  kShardedOptimizer,  // ZeRO-1 and 2: weights whole, masters and states cut over the ranks
  kFullShard,         // ZeRO-3, FSDP full_shard and hybrid_shard: weights too
};

// A part of a trained parameter that this rank's optimizer updates.
struct TrainablePart {
  int unit = 0;
  int param = 0;
  int64_t first = 0;  // element of the parameter
  int64_t count = 0;
  int64_t begin = 0;  // place in the unit's flat buffer
  at::Tensor master;  // 1-D, what the optimizer updates
  // 1-D in the type of the computation, which it is done with; undefined when master serves.
  at::Tensor copy;
};

// The tensors that a store on a GPU keeps in host memory.
struct OnHost {
  bool masters = false;
  bool blocks = false;  // with masters, and not where an optimizer alone is sharded
};

// The trained parameters: master weights and, where the computation has another type, a copy in it.
// Each unit's trained parameters are one flat buffer, cut over the ranks by PartSizes unless
// replicated. Masters may lie in host memory, for an optimizer there; then every part has a copy,
// and the copies of blocks may lie in pinned host memory themselves. Thread-compatible.
class TrainableStore {
 public:
  // Allocates zeroed weights on comm's device. Borrows `layout` and `comm`.
  TrainableStore(const ModelLayout& layout, at::ScalarType compute, at::ScalarType master,
                 Placement placement, Communicator& comm, OnHost on_host = {});

  // Fills the weights this rank holds: `read(unit, param, first, count)` gives those elements,
  // flat, of any float type and device.
  using Reader = std::function<at::Tensor(int unit, int param, int64_t first, int64_t count)>;
  void Load(const Reader& read);
  // Replaces a whole trained parameter, of any float type and device, by what this rank holds of
  // it.
  void Set(int unit, int param, const at::Tensor& whole);

  // Gives out the weights; shares their storage with this store.
  std::unique_ptr<WeightSource> MakeSource() const;

  // The parts this rank updates, by unit and place. The gradient sinks keep the same order.
  const std::vector<TrainablePart>& parts() const { return parts_; }

  // To be called after the optimizer updated the parts: makes the weights whole again where they
  // are replicated but their optimizer is not. A collective.
  void AfterUpdate();

  // A trained parameter of the whole model as its master weight. A collective unless replicated;
  // every rank gets the result, replicated ones where their master lies.
  at::Tensor Gather(int unit, int param) const;

  Placement placement() const { return placement_; }
  bool masters_on_host() const { return on_host_.masters; }
  int64_t Bytes() const;  // on comm's device

  const FlatLayout& flat(int unit) const { return units_[unit].flat; }
  const std::vector<int64_t>& counts(int unit) const { return units_[unit].counts; }
  // Start and size of this rank's shard in the unit's flat buffer.
  int64_t shard_begin(int unit) const { return units_[unit].begin; }
  int64_t shard_size(int unit) const { return units_[unit].size; }

 private:
  struct Unit {
    FlatLayout flat;
    std::vector<int64_t> counts;  // by rank; one count when replicated
    int64_t begin = 0;
    int64_t size = 0;
    at::Tensor compute;    // the whole flat buffer, or this rank's shard of it with kFullShard
    bool on_host = false;  // that
    at::Tensor master;     // this rank's shard; a view of `compute` where one type serves both
  };

  Unit MakeUnit(int index, at::ScalarType compute, at::ScalarType master) const;
  void AddParts(int unit);
  // The pieces of the trained parameters whose weights this rank holds; and their filling.
  std::vector<FlatLayout::Piece> HeldPieces(const Unit& unit) const;
  void Fill(Unit& unit, const FlatLayout::Piece& piece, const at::Tensor& values);
  // The source of the units for which `gives` returns true.
  std::unique_ptr<WeightSource> MakeShardedSource(bool (*gives)(const Unit& unit)) const;

  const ModelLayout& layout_;
  Placement placement_;
  Communicator& comm_;
  OnHost on_host_;
  bool separate_;  // the masters have storage of their own
  std::vector<Unit> units_;
  std::vector<TrainablePart> parts_;
};

}  // namespace sft::engine
