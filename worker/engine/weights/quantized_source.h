#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "common/plan/execution.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/quant_format.h"
#include "worker/engine/weights/side_stream.h"
#include "worker/engine/weights/slot_pool.h"
#include "worker/engine/weights/unit_expansion.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Frozen weights kept as quantised bytes, or as their own (MakePlainFormat), expanded into a slot
// by Prefetch (on a stream of its own where the device has streams) or Acquire. The bytes are whole
// on every rank, or cut over the ranks at cut units and gathered as raw bytes first; they lie on
// the device, or in host memory and are copied to it first. Units that there is memory for keep
// their de-quantised weights; others carry what a backward has used to the next forward, in memory
// that saved activations take only after it. Weights stand in their shared matrices, with room for
// the adapters.
class QuantizedSource : public WeightSource {
 public:
  struct Options {
    // Type of the de-quantised weights; float8_e4m3fn gives FP8 matrices.
    at::ScalarType compute = at::kFloat;
    bool sharded = false;  // cut the bytes over comm's ranks
    // Read of it: the blocks that keep or carry their de-quantised weights (none carries FP8
    // matrices, whose forward reads other bytes); `prefetch`; and `blocks_on_host`, which has this
    // rank's bytes in pinned host memory.
    plan::ExecutionPlan run;
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
  // In place of Load for weights that need no quantising: their bytes, of what RangeOf asked for,
  // planes without padding.
  void LoadBytes(int unit, int param, const QuantizedPart& bytes);
  // In place of Load for a parameter that is plain_among_quantized: the whole weight in the type of
  // the computation, whatever RangeOf says.
  void LoadPlain(int unit, int param, at::Tensor weight);

  void Prefetch(int unit, WeightUse use) override;
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override {}  // frozen
  int64_t ResidentBytes() const override;
  bool fixed() const override;  // where every unit keeps its weights

 private:
  struct Unit {
    FlatLayout cut_units;         // pieces in cut units
    std::vector<int64_t> counts;  // cut units of each rank; one count when not sharded
    std::vector<at::Tensor> planes;
    std::vector<at::Tensor> constants;  // by piece
    std::vector<at::Tensor> plain;      // by piece, where it is plain_among_quantized
    // Planes of the whole unit on the device while they are fetched, and this rank's on their way.
    std::vector<at::Tensor> fetched, staged;
    std::vector<WorkPtr> gathers;
    std::unique_ptr<UnitExpansion> expansion;
    bool carries = false;
    // The expansion's buffer where the unit has its own: for the whole run, or from a backward to
    // the release after the next forward. Else a slot serves.
    at::Tensor own;
    bool ends_carrying = false;  // the acquisitions under way do, when the last is released
    int acquired = 0;
    int filled = 0;           // bits of WeightUse: what its own buffer or its slot holds
    int rewritten = 0;        // of these, since the unit was last acquired
    bool prefetched = false;  // its buffer is being filled; if that is a slot's, it is pinned
  };

  Unit MakeUnit(const UnitInfo& info) const;
  void ChooseOwners(const plan::ExecutionPlan& run);
  at::Tensor NewBuffer(const Unit& unit) const;
  int64_t FirstCutUnit(const Unit& unit) const;
  static size_t PieceOf(const Unit& unit, int param);
  // True if a unit's bytes have to be brought together before they are de-quantised.
  bool fetches() const { return sharded_ || on_host_; }
  // On the side stream where the bytes come from the host.
  void StartFetch(Unit& unit);
  // Buffer for the weights of `unit`: its own, made where it carries them on, or a pinned slot.
  at::Tensor Hold(int unit, WeightUse use);
  // Writes what is missing of `use`.
  void Fill(Unit& unit, WeightUse use, const at::Tensor& buffer);
  QuantizedPart BytesOf(const Unit& unit, int param) const;

  const ModelLayout& layout_;
  std::unique_ptr<QuantFormat> format_;
  bool sharded_, on_host_;
  bool prefetch_;
  Communicator& comm_;
  std::vector<Unit> units_;
  SlotPool slots_;
  int64_t slot_bytes_ = 0;  // the largest unit's: blocks of different sizes pass through one buffer
  SideStream side_;
};

}  // namespace sft::engine
