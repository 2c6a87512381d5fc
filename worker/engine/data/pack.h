#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sft::engine {

// Puts items into as few bins of `capacity` as first-fit decreasing finds: at most 11/9 of the best
// possible number. `lengths[i]` is in [0, capacity]. Returns the items of each bin; every item is
// in exactly one. Equal input, equal output. O(n log n).
std::vector<std::vector<uint32_t>> PackFirstFitDecreasing(std::span<const int64_t> lengths,
                                                          int64_t capacity);

}  // namespace sft::engine
