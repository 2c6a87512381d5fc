#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/quant_format.h"
#include "worker/engine/weights/side_stream.h"
#include "worker/engine/weights/slot_pool.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Frozen weights kept as quantised bytes, de-quantised into a slot by Prefetch (on a stream of its
// own where the device has streams) or Acquire. The bytes are whole on every rank, or cut over the
// ranks at cut units and gathered as raw bytes first. Units that there is memory for keep their
// de-quantised weights. Weights stand in their shared matrices, with room for the adapters.
class QuantizedSource : public WeightSource {
 public:
  // `compute`: type of the de-quantised weights. `sharded`: cut the bytes over comm's ranks.
  // `kept`: that many blocks, from the last, keep their de-quantised weights. Borrows `layout` and
  // `comm`.
  QuantizedSource(const ModelLayout& layout, std::unique_ptr<QuantFormat> format,
                  at::ScalarType compute, bool sharded, int kept, Communicator& comm);
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

  void Prefetch(int unit) override;
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override {}  // frozen
  int64_t ResidentBytes() const override;

 private:
  // Where a parameter stands in the buffer of its de-quantised unit, as rows.
  struct Place {
    int64_t begin = 0;
    int64_t stride = 0;
  };
  struct Unit {
    FlatLayout cut_units;         // pieces in cut units
    std::vector<Place> places;    // by piece
    int64_t elements = 0;         // of the de-quantised unit's buffer
    at::Tensor kept;              // the buffer, where the unit keeps it
    bool filled = false;          // `kept` holds the weights
    bool prefetched = false;      // the unit's slot is being filled, and pinned
    bool rewritten = false;       // since it was last acquired
    std::vector<int64_t> counts;  // cut units of each rank; one count when not sharded
    std::vector<at::Tensor> planes;
    std::vector<at::Tensor> constants;  // by piece
    std::vector<at::Tensor> gathered;   // planes of the whole unit while a gather is under way
    std::vector<WorkPtr> gathers;
  };

  Unit MakeUnit(const UnitInfo& info) const;
  int64_t FirstCutUnit(const Unit& unit) const;
  // A parameter's place in `buffer`.
  at::Tensor View(int unit, int piece, const at::Tensor& buffer) const;
  void StartGather(Unit& unit);
  void Fill(int unit, at::Tensor& buffer);
  void Dequantize(int unit, std::span<const at::Tensor> planes, const at::Tensor& buffer) const;

  const ModelLayout& layout_;
  std::unique_ptr<QuantFormat> format_;
  at::ScalarType compute_;
  bool sharded_;
  Communicator& comm_;
  std::vector<Unit> units_;
  SlotPool slots_;
  SideStream side_;
};

}  // namespace sft::engine
