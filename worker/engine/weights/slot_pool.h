#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace sft::engine {

// A few flat buffers that units' weights pass through. A slot keeps its content after the unit is
// released until the slot is needed, so that a unit acquired twice in a row is filled once.
class SlotPool {
 public:
  // Two for the walk (one in use, one being filled) and one more for a tied head, which holds the
  // embedding beside its own unit.
  static constexpr int kSlots = 3;

  struct Slot {
    int unit = -1;  // whose content it holds; -1: nobody's
    int pins = 0;
    uint64_t last_use = 0;
    at::Tensor buffer;
  };

  // The slot that holds `unit`, or null.
  Slot* Find(int unit);
  // A slot nobody has pinned, its buffer of `elements` or up to twice as many, marked as `unit`'s:
  // the least recently used of those with such a buffer, else one without a buffer, else the one of
  // the next size, whose buffer is made anew.
  Slot& Take(int unit, int64_t elements, const at::TensorOptions& options);
  void Pin(Slot& slot);
  // Throws InternalError when the unit is not pinned.
  void Unpin(int unit);
  // Forgets all content; buffers stay.
  void Clear();
  int64_t Bytes() const;

 private:
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
  uint64_t clock_ = 0;
};

}  // namespace sft::engine
