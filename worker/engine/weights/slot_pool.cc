#include "worker/engine/weights/slot_pool.h"

#include <ATen/ops/empty.h>

#include <cstdlib>
#include <string>
#include <tuple>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

// A buffer may be so many times as large as its content.
constexpr int64_t kMostSpare = 2;

}  // namespace

SlotPool::Slot* SlotPool::Find(int unit) {
  for (Slot& slot : slots_) {
    if (slot.unit == unit) return &slot;
  }
  return nullptr;
}

SlotPool::Slot& SlotPool::Take(int unit, int64_t elements, const at::TensorOptions& options) {
  // Blocks of different sizes pass through the buffers of the largest, and leave alone a much
  // larger one, which is the embedding's and wanted again at the head.
  const auto fits = [elements](const Slot& slot) {
    return slot.buffer.defined() && slot.buffer.numel() >= elements &&
           slot.buffer.numel() <= kMostSpare * elements;
  };
  // First a slot of this size, then one that was never used, so that blocks do not move into the
  // embedding's; then one that fits, then the one of the next size, which grows.
  const auto order = [&](const Slot& slot) {
    if (!slot.buffer.defined()) return std::tuple(1, int64_t{0}, slot.last_use);
    const int64_t distance = std::abs(slot.buffer.numel() - elements);
    if (distance == 0) return std::tuple(0, int64_t{0}, slot.last_use);
    return fits(slot) ? std::tuple(2, int64_t{0}, slot.last_use)
                      : std::tuple(3, distance, slot.last_use);
  };
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.pins > 0) continue;
    if (best == nullptr || order(slot) < order(*best)) best = &slot;
  }
  if (best == nullptr) {
    throw InternalError("more than " + std::to_string(kSlots) + " units are acquired at once");
  }
  if (!fits(*best)) best->buffer = at::Tensor();  // freed before the new one is allocated
  if (!best->buffer.defined()) best->buffer = at::empty({elements}, options);
  best->unit = unit;
  best->last_use = ++clock_;
  return *best;
}

void SlotPool::Pin(Slot& slot) {
  ++slot.pins;
  slot.last_use = ++clock_;
}

void SlotPool::Unpin(int unit) {
  Slot* slot = Find(unit);
  if (slot == nullptr || slot->pins == 0) {
    throw InternalError("unit " + std::to_string(unit) + " is released but was not acquired");
  }
  --slot->pins;
  slot->last_use = ++clock_;
}

void SlotPool::Clear() {
  for (Slot& slot : slots_) {
    if (slot.pins > 0) throw InternalError("weights are invalidated while a unit is in use");
    slot.unit = -1;
  }
}

int64_t SlotPool::Bytes() const {
  int64_t bytes = 0;
  for (const Slot& slot : slots_) {
    if (slot.buffer.defined()) bytes += static_cast<int64_t>(slot.buffer.nbytes());
  }
  return bytes;
}

}  // namespace sft::engine
