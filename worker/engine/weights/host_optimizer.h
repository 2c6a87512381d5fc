#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/execution.h"
#include "worker/engine/optim/adamw_set.h"
#include "worker/engine/weights/host_lane.h"
#include "worker/engine/weights/trainable_store.h"

namespace sft::engine {

// AdamW on the host for weights that a device computes with (ZeRO-Offload, Ren et al. 2021). Master
// weights and states lie in host memory; gradients come, and new weights go, through a few pinned
// buffers, copied beside the computation and beside the update of the piece before.
//
// A step is begun when the norm of all gradients is known, and done unit by unit: the forward of
// the next step asks for a unit (Update) and goes on, so that the host updates a block while the
// device computes the one before it. What is read without asking needs Finish.
//
// Costs a step, n elements of this rank's part, C bytes an element on the way: 2 n C over the bus,
// each way beside the other; host memory reads and writes 24 n of fp32 masters and states and
// moves 4 n C of gradients and weights through the buffers, pinned memory counted on both sides. An
// 8B model in bf16: 16 GB each way, 0.3 s at 50 GB/s, and 260 GB of host memory: 2.6 s at 100 GB/s,
// 1.3 s at 200 GB/s (the loops alone: 1.5 ns an element and core), of which one forward of a
// micro-batch is hidden.
//
// Deterministic: the bits of AdamW on the same gradients, whatever the pieces and the threads.
// Thread-compatible; the loops use all threads of the rank.
class HostOptimizer {
 public:
  struct Options {
    AdamWOptions adamw;
    // Type that gradients are sent in; their own, fp32, or bf16.
    at::ScalarType wire = at::kFloat;
    // Elements that are sent and updated at a time, 8,192 at least: parts are cut in equal pieces,
    // none of which may fall below the size from which states are coded in 8 bits.
    int64_t piece = plan::kHostPiece;
  };
  // A part's parameter: name, place in the model, how it is updated.
  struct PartInfo {
    std::string name;
    int64_t id = 0;
    UpdateRule rule;
  };
  // Updates store.parts(), whose masters lie in host memory; `infos` in the same order. `device`:
  // where the copies and the gradients are. Keeps its own references to the tensors.
  HostOptimizer(const TrainableStore& store, const std::vector<PartInfo>& infos, at::Device device,
                const Options& options);

  // Begins a step with gradients[i] * scale as that of part i; fp32 on the device, those of a unit
  // end to end in one storage, and unchanged until every unit is updated. Finishes the step before.
  void Begin(const std::vector<at::Tensor>& gradients, double lr, double scale);
  // Updates the units up to `unit`; the computation goes on after their new weights have arrived.
  void Update(int unit);
  void Finish();
  // True while units wait to be updated.
  bool pending() const { return next_ < transfers_.size(); }

  // The holders of masters and states; those of a step that was begun are there once it is
  // finished.
  std::vector<AdamW*> Optimizers() const { return adamw_->All(); }

  // Bytes of states, and of pinned buffers, in host memory.
  int64_t StateBytes() const;
  int64_t BufferBytes() const;

 private:
  // Consecutive elements of a part, with states of their own.
  struct Piece {
    size_t index = 0;   // in adamw_
    int64_t begin = 0;  // in its transfer
    int64_t count = 0;
    at::Tensor master;
  };
  // Consecutive pieces of a unit, sent at once.
  struct Transfer {
    int unit = 0;
    size_t first_part = 0;  // of the store, that it begins in
    int64_t first = 0;      // element of that part
    int64_t count = 0;
    at::Tensor weights;  // on the device
    std::vector<Piece> pieces;
  };
  struct Slot {
    at::Tensor gradients, weights;  // pinned
  };

  void AddPiece(const TrainablePart& part, size_t index, int64_t first, Piece piece);
  void MakeSlots();
  void CheckGradients(const Transfer& transfer, const std::vector<at::Tensor>& gradients) const;
  void Fetch(size_t transfer);
  void UpdateNext();

  at::Device device_;
  at::ScalarType wire_;
  int64_t piece_;
  std::vector<Transfer> transfers_;  // in the order of the units
  std::unique_ptr<AdamWSet> adamw_;  // of the pieces
  std::vector<Slot> slots_;
  at::Tensor converted_;  // on the device, where the wire has another type than the gradients
  HostLane down_, up_;
  std::vector<at::Tensor> gradients_;  // of the step under way, by part
  size_t next_ = 0;                    // transfer to be updated; their number: none
};

}  // namespace sft::engine
