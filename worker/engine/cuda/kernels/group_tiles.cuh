// How thread blocks that stay share out the tiles of groups of rows.
#pragma once

#include <cstdint>

#include "worker/engine/cuda/kernels/grouped_gemm.h"

namespace sft::engine::cuda {

// In shared memory, for all groups of a launch.
struct GroupTable {
  int32_t begins[kMaxGroups + 1];
  int32_t tiles[kMaxGroups + 1];  // those before a group
};

// Fills the table; all threads of the block call it, the first warp works. `tiles_of(rows)`: how
// many tiles a group of so many rows has.
template <typename TilesOf>
__device__ __forceinline__ void FillTable(GroupTable& table, const int32_t* begins, int groups,
                                          const TilesOf& tiles_of) {
  for (int g = threadIdx.x; g <= groups; g += blockDim.x) table.begins[g] = begins[g];
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int before = 0;
    for (int first = 0; first < groups; first += 32) {
      const int g = first + lane;
      int sum = g < groups ? tiles_of(table.begins[g + 1] - table.begins[g]) : 0;
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const int other = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += other;
      }
      if (g < groups) table.tiles[g + 1] = before + sum;
      before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0) table.tiles[0] = 0;
  }
  __syncthreads();
}

// The group of tile number `tile`.
__device__ __forceinline__ int GroupOf(const GroupTable& table, int groups, int tile) {
  int low = 0, high = groups - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.tiles[middle] <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace sft::engine::cuda
