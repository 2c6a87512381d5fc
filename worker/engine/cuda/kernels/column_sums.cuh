// Sums of columns over all rows, in one order that depends on the shape alone: gradients of norms'
// weights and of biases.
#pragma once

#include <algorithm>

#include "worker/engine/cuda/kernels/rows.cuh"

namespace sft::engine::cuda {

// A block owns kSumColumns vectors of columns and one slice of the rows; its threads walk the slice
// with a stride, then the block adds their sums in a fixed order.
inline constexpr int kSumColumns = 16;
inline constexpr int kSumRowLanes = 16;
inline constexpr int64_t kRowsPerSlice = 256;
inline constexpr int64_t kMaxSlices = 256;

// Rows of the scratch matrix [ColumnSumPartials, sums * width] of floats.
inline int64_t ColumnSumPartials(RowsShape shape) {
  return std::clamp<int64_t>(CeilDiv(shape.rows, kRowsPerSlice), 1, kMaxSlices);
}

// Terms has the Type of the rows' elements, kSums, Read<N>(row, c), which loads columns c to c + N
// of a row, and Add(what was read, row, c, sums [kSums][N]), which adds what they contribute to
// each of the sums. While a row is added, the thread's next one is on its way.
template <typename Terms, int N>
__global__ void __launch_bounds__(kSumColumns* kSumRowLanes)
    ColumnSumsKernel(RowsShape shape, int64_t rows_per_slice, const __grid_constant__ Terms terms,
                     float* __restrict__ partials) {
  constexpr int kSums = Terms::kSums;
  const int column = threadIdx.x % kSumColumns;
  const int row_lane = threadIdx.x / kSumColumns;
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kSumColumns + column) * N;
  const int64_t first = blockIdx.y * rows_per_slice;
  const int64_t last = first + rows_per_slice < shape.rows ? first + rows_per_slice : shape.rows;
  float sums[kSums][N] = {};
  if (c < shape.width) {
    int64_t row = first + row_lane;
    if (row < last) {
      auto next = terms.template Read<N>(row, c);
      for (; row < last; row += kSumRowLanes) {
        const auto held = next;
        if (row + kSumRowLanes < last) next = terms.template Read<N>(row + kSumRowLanes, c);
        terms.Add(held, row, c, sums);
      }
    }
  }
  __shared__ float shared[kSums][kSumRowLanes][kSumColumns * N + 1];
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int i = 0; i < N; ++i) shared[s][row_lane][column * N + i] = sums[s][i];
  }
  __syncthreads();
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kSumColumns * N;
  for (int i = threadIdx.x; i < kSums * kSumColumns * N; i += kSumColumns * kSumRowLanes) {
    const int s = i / (kSumColumns * N), of_block = i % (kSumColumns * N);
    if (first_column + of_block >= shape.width) continue;
    float sum = 0.0f;
    for (int r = 0; r < kSumRowLanes; ++r) sum += shared[s][r][of_block];
    partials[(blockIdx.y * kSums + s) * shape.width + first_column + of_block] = sum;
  }
}

// Terms::kSums sums [kSums, width] through `partials`; `wide`: all rows that the terms touch allow
// 16-byte accesses and none cuts one off.
template <typename Terms>
cudaError_t LaunchColumnSums(RowsShape shape, bool wide, const Terms& terms, float* partials,
                             float* sums, cudaStream_t stream) {
  const int64_t slices = ColumnSumPartials(shape);
  const auto launch = [&]<int N>(std::integral_constant<int, N>) {
    const dim3 blocks(static_cast<unsigned>(CeilDiv(shape.width, kSumColumns * N)),
                      static_cast<unsigned>(slices));
    ColumnSumsKernel<Terms, N><<<blocks, kSumColumns * kSumRowLanes, 0, stream>>>(
        shape, CeilDiv(shape.rows, slices), terms, partials);
  };
  if (wide) {
    launch(std::integral_constant<int, kWide<typename Terms::Type>>());
  } else {
    launch(std::integral_constant<int, 1>());
  }
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return LaunchSumRows(partials, slices, Terms::kSums * shape.width, sums, stream);
}

}  // namespace sft::engine::cuda
