#include "worker/engine/weights/sharded_source.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace sft::engine {

ShardedSource::ShardedSource(const ModelLayout& layout, Communicator& comm)
    : layout_(layout), comm_(comm), units_(layout.units.size()), side_(comm.device()) {}

ShardedSource::~ShardedSource() = default;

void ShardedSource::Set(int unit, FlatLayout flat, std::vector<int64_t> counts, at::Tensor shard,
                        bool on_host) {
  Unit& u = units_[unit];
  u.flat = std::move(flat);
  u.counts = std::move(counts);
  u.shard = std::move(shard);
  u.on_host = on_host;
}

void ShardedSource::Prefetch(int unit, WeightUse) {
  Unit& u = units_[unit];
  if (u.flat.empty() || slots_.Find(unit) != nullptr) return;
  SlotPool::Slot& slot = slots_.Take(unit, u.flat.size(), u.shard.options().device(comm_.device()));
  slots_.Pin(slot);  // until Acquire takes the pin over
  u.under_way = true;
  if (u.on_host) {
    StartFromHost(u, slot.buffer.narrow(0, 0, u.flat.size()));
  } else {
    u.gather = comm_.AllGatherAsync(slot.buffer.narrow(0, 0, u.flat.size()), u.shard, u.counts);
  }
}

void ShardedSource::StartFromHost(Unit& u, const at::Tensor& slot) {
  const bool alone = u.counts.size() == 1;
  at::Tensor shard = alone ? slot : at::empty(u.shard.sizes(), slot.options());
  // The memory is the computation's, and follows it.
  const SideStream::Scope scope(side_);
  shard.copy_(u.shard, /*non_blocking=*/true);
  if (alone) return;
  u.gather = comm_.AllGatherAsync(slot, shard, u.counts);
  u.staged = shard;
}

void ShardedSource::Finish(Unit& u) {
  if (u.gather != nullptr) {
    u.gather->Wait();
  } else {
    side_.Join();
  }
  u.gather = nullptr;
  u.staged = at::Tensor();
  u.under_way = false;
}

void ShardedSource::Acquire(int unit, UnitWeights& weights) {
  Unit& u = units_[unit];
  if (u.flat.empty()) return;
  Prefetch(unit, weights.use);
  SlotPool::Slot& slot = *slots_.Find(unit);
  if (u.under_way) {
    Finish(u);
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
    if (!units_[i].under_way) continue;
    Finish(units_[i]);
    slots_.Unpin(static_cast<int>(i));
  }
  slots_.Clear();
}

int64_t ShardedSource::ResidentBytes() const {
  int64_t bytes = slots_.Bytes();
  for (const Unit& unit : units_) {
    if (unit.shard.defined() && !unit.on_host) bytes += static_cast<int64_t>(unit.shard.nbytes());
  }
  return bytes;
}

}  // namespace sft::engine
