#pragma once

#include <cstdint>

namespace sft {

// Generations of servers (server/core/generation.h) begin with the first, and are about the time in
// seconds once one was raised. A number beyond the last comes from a damaged file or from somebody
// who makes it up: believed, it would be above that of every later server.
inline constexpr int64_t kFirstGeneration = 1, kLastGeneration = 1'000'000'000'000;

inline constexpr bool IsGeneration(int64_t number) {
  return number >= kFirstGeneration && number <= kLastGeneration;
}

}  // namespace sft
