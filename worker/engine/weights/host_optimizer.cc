#include "worker/engine/weights/host_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/adamw_format.h"

namespace sft::engine {

using at::Tensor;

namespace {

// `count` elements from `first` of the storage that `part` starts in.
Tensor Span(const Tensor& part, int64_t first, int64_t count) {
  return part.as_strided({count}, {1}, part.storage_offset() + first);
}

bool Follows(const Tensor& part, const Tensor& before) {
  return part.is_alias_of(before) &&
         part.storage_offset() == before.storage_offset() + before.numel();
}

// Sizes of the equal pieces of a part, but for the last: multiples of the states' blocks, so that
// those are the same as of the whole part, and none is small beside the others.
int64_t PieceSize(int64_t elements, int64_t most) {
  const int64_t pieces = (elements + most - 1) / most;
  const int64_t size = (elements + pieces - 1) / pieces;
  return (size + kOptimizerBlock - 1) / kOptimizerBlock * kOptimizerBlock;
}

}  // namespace

HostOptimizer::HostOptimizer(const TrainableStore& store, const std::vector<PartInfo>& infos,
                             at::Device device, const Options& options)
    : device_(device),
      wire_(options.wire),
      piece_(options.piece),
      down_(device, plan::kHostTransfers),
      up_(device, plan::kHostTransfers) {
  std::vector<OptimizerParam> params;
  std::vector<UpdateRule> rules;
  for (size_t i = 0; i < store.parts().size(); ++i) {
    const TrainablePart& part = store.parts()[i];
    if (!part.copy.defined() || !part.master.is_cpu()) {
      throw InternalError("the optimizer of the host needs \"" + infos.at(i).name +
                          "\" in host memory, and a copy");
    }
    if (part.count == 0) continue;
    const int64_t size = PieceSize(part.count, piece_);
    for (int64_t first = 0; first < part.count; first += size) {
      const int64_t count = std::min(size, part.count - first);
      const Tensor master = part.master.narrow(0, first, count);
      const PartInfo& info = infos.at(i);
      AddPiece(part, i, first, {params.size(), 0, count, master});
      params.push_back({info.name, master, {}, info.id, part.first + first});
      rules.push_back(info.rule);
    }
  }
  adamw_ = std::make_unique<AdamWSet>(params, rules, options.adamw);
  next_ = transfers_.size();
  MakeSlots();
}

void HostOptimizer::AddPiece(const TrainablePart& part, size_t index, int64_t first, Piece piece) {
  const bool joins = !transfers_.empty() && transfers_.back().unit == part.unit &&
                     transfers_.back().count + piece.count <= piece_;
  if (!joins) {
    transfers_.push_back({.unit = part.unit, .first_part = index, .first = first});
  }
  Transfer& transfer = transfers_.back();
  piece.begin = transfer.count;
  transfer.count += piece.count;
  const Tensor& begins_in = joins ? transfer.weights : part.copy;
  transfer.weights = Span(begins_in, joins ? 0 : first, transfer.count);
  transfer.pieces.push_back(std::move(piece));
}

void HostOptimizer::MakeSlots() {
  int64_t largest = 0;
  for (const Transfer& transfer : transfers_) largest = std::max(largest, transfer.count);
  if (largest == 0) return;
  const at::ScalarType compute = transfers_[0].weights.scalar_type();
  for (size_t i = 0; i < std::min<size_t>(plan::kHostTransfers, transfers_.size()); ++i) {
    slots_.push_back(
        {PinnedBuffer(largest, wire_, device_), PinnedBuffer(largest, compute, device_)});
  }
  if (wire_ != at::kFloat) {
    converted_ = at::empty({largest}, at::TensorOptions(device_).dtype(wire_));
  }
}

void HostOptimizer::Begin(const std::vector<Tensor>& gradients, double lr, double scale) {
  Finish();
  for (const Transfer& transfer : transfers_) CheckGradients(transfer, gradients);
  gradients_ = gradients;
  adamw_->BeginStep(lr, scale);
  next_ = 0;
  down_.Follow();
  up_.Follow();
  for (size_t i = 0; i < slots_.size(); ++i) Fetch(i);
}

void HostOptimizer::CheckGradients(const Transfer& transfer,
                                   const std::vector<Tensor>& gradients) const {
  int64_t elements = gradients.at(transfer.first_part).numel() - transfer.first;
  for (size_t i = transfer.first_part + 1; elements < transfer.count; ++i) {
    if (!Follows(gradients.at(i), gradients[i - 1])) {
      throw InternalError("the gradients of a unit do not lie end to end");
    }
    elements += gradients[i].numel();
  }
}

void HostOptimizer::Fetch(size_t index) {
  if (index >= transfers_.size()) return;
  const Transfer& transfer = transfers_[index];
  const int slot = static_cast<int>(index % slots_.size());
  Tensor gradient = Span(gradients_[transfer.first_part], transfer.first, transfer.count);
  if (converted_.defined()) {
    const Tensor converted = converted_.narrow(0, 0, transfer.count);
    down_.Start(slot, converted, gradient);
    gradient = converted;
  }
  down_.Start(slot, slots_[slot].gradients.narrow(0, 0, transfer.count), gradient);
}

void HostOptimizer::UpdateNext() {
  const size_t index = next_++;
  const Transfer& transfer = transfers_[index];
  const int slot = static_cast<int>(index % slots_.size());
  const Slot& buffers = slots_[slot];
  down_.WaitOnHost(slot);
  up_.WaitOnHost(slot);
  for (const Piece& piece : transfer.pieces) {
    const Tensor gradient = buffers.gradients.narrow(0, piece.begin, piece.count);
    const Tensor weights = buffers.weights.narrow(0, piece.begin, piece.count);
    if (weights.scalar_type() != piece.master.scalar_type()) {
      adamw_->StepParam(piece.index, gradient, weights);
    } else {
      adamw_->StepParam(piece.index, gradient, {});
      weights.copy_(piece.master);
    }
  }
  up_.Start(slot, transfer.weights, buffers.weights.narrow(0, 0, transfer.count));
  Fetch(index + slots_.size());
}

void HostOptimizer::Update(int unit) {
  if (!pending() || transfers_[next_].unit > unit) return;
  const at::NoGradGuard no_grad;
  while (pending() && transfers_[next_].unit <= unit) UpdateNext();
  up_.Join();
  if (!pending()) gradients_.clear();
}

void HostOptimizer::Finish() {
  if (pending()) Update(transfers_.back().unit);
}

int64_t HostOptimizer::StateBytes() const { return adamw_->StateBytes(); }

int64_t HostOptimizer::BufferBytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += static_cast<int64_t>(slot.gradients.nbytes() + slot.weights.nbytes());
  }
  return bytes;
}

}  // namespace sft::engine
