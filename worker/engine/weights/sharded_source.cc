#include "worker/engine/weights/sharded_source.h"

#include <utility>

namespace sft::engine {

ShardedSource::ShardedSource(const ModelLayout& layout, Communicator& comm)
    : layout_(layout), comm_(comm), units_(layout.units.size()) {}

ShardedSource::~ShardedSource() = default;

void ShardedSource::Set(int unit, FlatLayout flat, std::vector<int64_t> counts, at::Tensor shard) {
  units_[unit] = {std::move(flat), std::move(counts), std::move(shard), nullptr};
}

void ShardedSource::Prefetch(int unit, WeightUse) {
  Unit& u = units_[unit];
  if (u.flat.empty() || slots_.Find(unit) != nullptr) return;
  SlotPool::Slot& slot = slots_.Take(unit, u.flat.size(), u.shard.options());
  slots_.Pin(slot);  // until Acquire takes the pin over
  u.gather = comm_.AllGatherAsync(slot.buffer, u.shard, u.counts);
}

void ShardedSource::Acquire(int unit, UnitWeights& weights) {
  Unit& u = units_[unit];
  if (u.flat.empty()) return;
  Prefetch(unit, weights.use);
  SlotPool::Slot& slot = *slots_.Find(unit);
  if (u.gather != nullptr) {
    u.gather->Wait();
    u.gather = nullptr;
  } else {
    slots_.Pin(slot);
  }
  for (const FlatLayout::Piece& piece : u.flat.pieces()) {
    weights[piece.param] = slot.buffer.narrow(0, piece.begin, piece.count)
                               .view(layout_.units[unit].params[piece.param].shape);
  }
}

void ShardedSource::Release(int unit) {
  if (!units_[unit].flat.empty()) slots_.Unpin(unit);
}

void ShardedSource::Invalidate() {
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].gather == nullptr) continue;
    units_[i].gather->Wait();
    units_[i].gather = nullptr;
    slots_.Unpin(static_cast<int>(i));
  }
  slots_.Clear();
}

int64_t ShardedSource::ResidentBytes() const {
  int64_t bytes = slots_.Bytes();
  for (const Unit& unit : units_) {
    if (unit.shard.defined()) bytes += static_cast<int64_t>(unit.shard.nbytes());
  }
  return bytes;
}

}  // namespace sft::engine
