#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/quant_format.h"
#include "worker/engine/weights/side_stream.h"
#include "worker/engine/weights/slot_pool.h"
#include "worker/engine/weights/unit_expansion.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Frozen weights kept as quantised bytes, de-quantised into a slot by Prefetch (on a stream of its
// own where the device has streams) or Acquire. The bytes are whole on every rank, or cut over the
// ranks at cut units and gathered as raw bytes first. Units that there is memory for keep their
// de-quantised weights. Weights stand in their shared matrices, with room for the adapters.
class QuantizedSource : public WeightSource {
 public:
  struct Options {
    // Of the de-quantised weights; float8_e4m3fn gives FP8 matrices.
    at::ScalarType compute = at::kFloat;
    bool sharded = false;  // cut the bytes over comm's ranks
    int kept = 0;          // blocks, from the last, that keep their de-quantised weights
    bool prefetch = true;  // a second slot, filled beside the computation
  };
  // Borrows `layout` and `comm`.
  QuantizedSource(const ModelLayout& layout, std::unique_ptr<QuantFormat> format,
                  const Options& options, Communicator& comm);
  ~QuantizedSource() override;

  // Elements [first, first + count) of a quantised parameter that this rank has to read.
  struct Range {
    int64_t first = 0;
    int64_t count = 0;
  };
  Range RangeOf(int unit, int param) const;

  // Quantises what RangeOf asked for: flat fp32 or bf16 on comm's device. Every rank calls it for
  // every quantised parameter, in one order.
  void Load(int unit, int param, const at::Tensor& part);

  void Prefetch(int unit, WeightUse use) override;
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override {}  // frozen
  int64_t ResidentBytes() const override;

 private:
  struct Unit {
    FlatLayout cut_units;         // pieces in cut units
    std::vector<int64_t> counts;  // cut units of each rank; one count when not sharded
    std::vector<at::Tensor> planes;
    std::vector<at::Tensor> constants;  // by piece
    std::vector<at::Tensor> gathered;   // planes of the whole unit while a gather is under way
    std::vector<WorkPtr> gathers;
    std::unique_ptr<UnitExpansion> expansion;
    at::Tensor kept;          // the expansion's buffer, where the unit keeps it
    int filled = 0;           // bits of WeightUse: what the buffer or the slot holds
    int rewritten = 0;        // of these, since the unit was last acquired
    bool prefetched = false;  // the unit's slot is being filled, and pinned
  };

  Unit MakeUnit(const UnitInfo& info) const;
  int64_t FirstCutUnit(const Unit& unit) const;
  void StartGather(Unit& unit);
  // The slot of `unit`, taken if it has none.
  SlotPool::Slot& SlotOf(int unit);
  // Writes what is missing of `use`.
  void Fill(Unit& unit, WeightUse use, const at::Tensor& buffer);
  QuantizedPart BytesOf(const Unit& unit, int param) const;

  const ModelLayout& layout_;
  std::unique_ptr<QuantFormat> format_;
  bool sharded_;
  bool prefetch_;
  Communicator& comm_;
  std::vector<Unit> units_;
  SlotPool slots_;
  SideStream side_;
};

}  // namespace sft::engine
