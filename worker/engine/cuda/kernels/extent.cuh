// Where a document of a packed micro-batch lies.
#pragma once

#include <cstdint>

namespace sft::engine::cuda {

struct Extent {
  int32_t start, length;  // tokens
};

// Of document `index` of the `documents` that cu_seqlens, with documents + 1 entries, delimits; one
// beyond them is empty and lies at their end.
__device__ inline Extent ExtentOf(const int32_t* cu_seqlens, int32_t documents, int64_t index) {
  if (index >= documents) return {cu_seqlens[documents], 0};
  const int32_t start = cu_seqlens[index];
  return {start, cu_seqlens[index + 1] - start};
}

}  // namespace sft::engine::cuda
