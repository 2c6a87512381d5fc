// Where a token's document begins and ends.
#pragma once

#include <cstdint>

namespace sft::engine::cuda {

// The document that has `token`, the last of those that start at it or before: empty ones are never
// found.
__device__ __forceinline__ int32_t DocumentOf(const int32_t* cu_seqlens, int32_t documents,
                                              int64_t token) {
  int32_t low = 0, high = documents - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (cu_seqlens[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace sft::engine::cuda
