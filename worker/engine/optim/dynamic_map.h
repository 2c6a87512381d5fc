#pragma once

#include <array>
#include <cstdint>

#include "worker/engine/kernels/adamw_format.h"

// The 8-bit codes of optimizer states: bitsandbytes' dynamic maps, whose values are dense near zero
// (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization").

namespace sft::engine {

// A sorted table of 256 values and a fast search for the nearest. Immutable.
class DynamicMap {
 public:
  // [-0.993, 1]; the table of kernels/nf4_tables.h.
  static const DynamicMap& Signed();
  // [0, 1]: create_dynamic_map(signed=False, max_exponent_bits=7, total_bits=8).
  static const DynamicMap& Unsigned();

  const std::array<float, 256>& values() const { return values_; }
  // midpoints()[i] lies between values i and i + 1; the last is infinite.
  const std::array<float, 256>& midpoints() const { return midpoints_; }

  // The code of the value nearest to x in [-1, 1], the lower one at a midpoint. The upper 16 bits
  // of x select a first code; the map is coarse enough for the right one to be it or the next.
  uint8_t Nearest(float x) const {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    const uint8_t code = first_[bits >> 16];
    return static_cast<uint8_t>(code + (x > midpoints_[code] ? 1 : 0));
  }

 private:
  explicit DynamicMap(const std::array<float, 256>& values);

  std::array<float, 256> values_;
  std::array<float, 256> midpoints_;
  // Code of the least value among those that share their upper 16 bits.
  std::array<uint8_t, 65536> first_;
};

}  // namespace sft::engine
