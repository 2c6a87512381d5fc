#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace sft {

inline int64_t CeilDiv(int64_t n, int64_t parts) { return (n + parts - 1) / parts; }
inline int64_t RoundUp(int64_t n, int64_t step) { return CeilDiv(n, step) * step; }

// The largest divisor of n that is at most `at_most`, and at least 1.
inline int64_t LargestDivisor(int64_t n, int64_t at_most) {
  int64_t divisor = std::clamp<int64_t>(at_most, 1, n);
  while (n % divisor != 0) --divisor;
  return divisor;
}

// The padded length of a micro-batch: a multiple of 64 tokens, at most an eighth longer or 63
// tokens longer.
inline int64_t RoundTokens(int64_t tokens) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens)));
  return RoundUp(tokens, std::max<int64_t>(64, power / 8));
}

}  // namespace sft
