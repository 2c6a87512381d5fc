#include <algorithm>

#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

// A row belongs to kLanes threads: half a warp or a warp for short rows (QK-norm), a block for long
// ones. A second pass over a row reads it from L1 again.
template <int kLanes>
__device__ __forceinline__ float RowSum(float x) {
  if constexpr (kLanes <= kWarp) {
    return GroupSum<kLanes>(x);
  } else {
    __shared__ float shared[kLanes / kWarp];
    return BlockSum<kLanes>(x, shared);
  }
}

template <int kLanes>
inline constexpr int kRowsPerBlock = kLanes <= kWarp ? 256 / kLanes : 1;

template <typename T, int N, int kLanes>
__global__ void __launch_bounds__(256)
    RmsNormKernel(RmsNormShape shape, const T* __restrict__ x, const T* __restrict__ weight,
                  float eps, T* __restrict__ y, float* __restrict__ rstd) {
  const int lane = threadIdx.x % kLanes;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRowsPerBlock<kLanes> + threadIdx.x / kLanes;
  const int64_t width = row < shape.rows ? shape.width : 0;  // no lane may miss the shuffles
  const T* x_row = x + row * shape.width;
  float sum = 0.0f;
  for (int64_t c = lane * N; c < width; c += kLanes * N) {
    float xs[N];
    Load(x_row + c, xs);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += xs[i] * xs[i];
  }
  const float scale = rsqrtf(RowSum<kLanes>(sum) / shape.width + eps);
  for (int64_t c = lane * N; c < width; c += kLanes * N) {
    float xs[N], ws[N];
    Load(x_row + c, xs);
    Load(weight + c, ws);
#pragma unroll
    for (int i = 0; i < N; ++i) xs[i] = Rounded<T>(xs[i] * scale) * ws[i];
    Store(y + row * shape.width + c, xs);
  }
  if (lane == 0 && row < shape.rows) rstd[row] = scale;
}

// With g = dy * weight and h = x * rstd: dx = rstd * (g - h * mean(g * h)).
template <typename T, int N, int kLanes>
__global__ void __launch_bounds__(256)
    RmsNormBackwardKernel(RmsNormShape shape, const T* __restrict__ dy, const T* __restrict__ x,
                          const T* __restrict__ weight, const float* __restrict__ rstd,
                          T* __restrict__ dx) {
  const int lane = threadIdx.x % kLanes;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kRowsPerBlock<kLanes> + threadIdx.x / kLanes;
  const int64_t width = row < shape.rows ? shape.width : 0;
  const T* x_row = x + row * shape.width;
  const T* dy_row = dy + row * shape.width;
  const float scale = row < shape.rows ? rstd[row] : 0.0f;
  float dot = 0.0f;
  for (int64_t c = lane * N; c < width; c += kLanes * N) {
    float xs[N], ws[N], dys[N];
    Load(x_row + c, xs);
    Load(weight + c, ws);
    Load(dy_row + c, dys);
#pragma unroll
    for (int i = 0; i < N; ++i) dot += dys[i] * ws[i] * xs[i];
  }
  const float mean = RowSum<kLanes>(dot) * scale / shape.width;
  for (int64_t c = lane * N; c < width; c += kLanes * N) {
    float xs[N], ws[N], dys[N];
    Load(x_row + c, xs);
    Load(weight + c, ws);
    Load(dy_row + c, dys);
#pragma unroll
    for (int i = 0; i < N; ++i) xs[i] = scale * (dys[i] * ws[i] - xs[i] * scale * mean);
    Store(dx + row * shape.width + c, xs);
  }
}

// Weight gradient: a block owns kColumns vectors of columns and one slice of the rows; its threads
// walk the slice with a stride, then the block adds their sums in a fixed order.
constexpr int kColumns = 16;
constexpr int kRowLanes = 16;
constexpr int kRowsPerSlice = 256;
constexpr int64_t kMaxSlices = 256;

template <typename T, int N>
__global__ void __launch_bounds__(kColumns* kRowLanes)
    RmsNormWeightPartialKernel(RmsNormShape shape, int64_t rows_per_slice, const T* __restrict__ dy,
                               const T* __restrict__ x, const float* __restrict__ rstd,
                               float* __restrict__ partials) {
  const int column = threadIdx.x % kColumns;
  const int row_lane = threadIdx.x / kColumns;
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * kColumns + column) * N;
  const int64_t first = blockIdx.y * rows_per_slice;
  const int64_t last = first + rows_per_slice < shape.rows ? first + rows_per_slice : shape.rows;
  float sums[N] = {};
  if (c < shape.width) {
    for (int64_t row = first + row_lane; row < last; row += kRowLanes) {
      float xs[N], dys[N];
      Load(x + row * shape.width + c, xs);
      Load(dy + row * shape.width + c, dys);
      const float scale = rstd[row];
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += dys[i] * Rounded<T>(xs[i] * scale);
    }
  }
  __shared__ float shared[kRowLanes][kColumns * N + 1];
#pragma unroll
  for (int i = 0; i < N; ++i) shared[row_lane][column * N + i] = sums[i];
  __syncthreads();
  if (row_lane != 0 || c >= shape.width) return;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    float sum = 0.0f;
    for (int r = 0; r < kRowLanes; ++r) sum += shared[r][column * N + i];
    partials[blockIdx.y * shape.width + c + i] = sum;
  }
}

__global__ void SumRowsKernel(const float* __restrict__ matrix, int64_t rows, int64_t width,
                              float* __restrict__ sums) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c >= width) return;
  float sum = 0.0f;
  for (int64_t row = 0; row < rows; ++row) sum += matrix[row * width + c];
  sums[c] = sum;
}

// Calls `launch(lanes, vector width)` with compile-time constants that suit the row.
template <typename T, typename Launch>
void ChooseRowShape(int64_t width, bool wide, const Launch& launch) {
  const auto with_lanes = [&](auto vector) {
    constexpr int kVector = decltype(vector)::value;
    if (width <= 16 * kVector) return launch(std::integral_constant<int, 16>(), vector);
    if (width <= 128 * kVector) return launch(std::integral_constant<int, 32>(), vector);
    return launch(std::integral_constant<int, 256>(), vector);
  };
  if (wide && width % kWide<T> == 0) return with_lanes(std::integral_constant<int, kWide<T>>());
  return with_lanes(std::integral_constant<int, 1>());
}

template <typename T>
cudaError_t RmsNorm(RmsNormShape shape, const void* x, const void* weight, float eps, void* y,
                    float* rstd, cudaStream_t stream) {
  const bool wide = IsAligned<uint4>(x) && IsAligned<uint4>(weight) && IsAligned<uint4>(y);
  ChooseRowShape<T>(shape.width, wide, [&](auto lanes, auto vector) {
    constexpr int kLanes = decltype(lanes)::value;
    const auto blocks = static_cast<unsigned>(CeilDiv(shape.rows, kRowsPerBlock<kLanes>));
    RmsNormKernel<T, decltype(vector)::value, kLanes>
        <<<blocks, 256, 0, stream>>>(shape, static_cast<const T*>(x), static_cast<const T*>(weight),
                                     eps, static_cast<T*>(y), rstd);
  });
  return cudaGetLastError();
}

template <typename T>
cudaError_t RmsNormBackward(RmsNormShape shape, const void* dy, const void* x, const void* weight,
                            const float* rstd, void* dx, cudaStream_t stream) {
  const bool wide = IsAligned<uint4>(dy) && IsAligned<uint4>(x) && IsAligned<uint4>(weight) &&
                    IsAligned<uint4>(dx);
  ChooseRowShape<T>(shape.width, wide, [&](auto lanes, auto vector) {
    constexpr int kLanes = decltype(lanes)::value;
    const auto blocks = static_cast<unsigned>(CeilDiv(shape.rows, kRowsPerBlock<kLanes>));
    RmsNormBackwardKernel<T, decltype(vector)::value, kLanes>
        <<<blocks, 256, 0, stream>>>(shape, static_cast<const T*>(dy), static_cast<const T*>(x),
                                     static_cast<const T*>(weight), rstd, static_cast<T*>(dx));
  });
  return cudaGetLastError();
}

template <typename T, int N>
void LaunchWeightPartials(RmsNormShape shape, const void* dy, const void* x, const float* rstd,
                          float* partials, cudaStream_t stream) {
  const int64_t slices = RmsNormWeightPartials(shape);
  const dim3 blocks(static_cast<unsigned>(CeilDiv(shape.width, kColumns * N)),
                    static_cast<unsigned>(slices));
  RmsNormWeightPartialKernel<T, N><<<blocks, kColumns * kRowLanes, 0, stream>>>(
      shape, CeilDiv(shape.rows, slices), static_cast<const T*>(dy), static_cast<const T*>(x), rstd,
      partials);
}

}  // namespace

cudaError_t LaunchRmsNorm(ElementType type, RmsNormShape shape, const void* x, const void* weight,
                          float eps, void* y, float* rstd, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? RmsNorm<float> : RmsNorm<__nv_bfloat16>;
  return run(shape, x, weight, eps, y, rstd, stream);
}

cudaError_t LaunchRmsNormBackward(ElementType type, RmsNormShape shape, const void* dy,
                                  const void* x, const void* weight, const float* rstd, void* dx,
                                  cudaStream_t stream) {
  const auto run =
      type == ElementType::kFloat32 ? RmsNormBackward<float> : RmsNormBackward<__nv_bfloat16>;
  return run(shape, dy, x, weight, rstd, dx, stream);
}

int64_t RmsNormWeightPartials(RmsNormShape shape) {
  return std::clamp<int64_t>(CeilDiv(shape.rows, kRowsPerSlice), 1, kMaxSlices);
}

cudaError_t LaunchRmsNormWeightBackward(ElementType type, RmsNormShape shape, const void* dy,
                                        const void* x, const float* rstd, float* partials,
                                        float* dweight, cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    const bool wide = RowsAreWide<T>(dy, shape.width) && RowsAreWide<T>(x, shape.width);
    return wide ? LaunchWeightPartials<T, kWide<T>> : LaunchWeightPartials<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  run(shape, dy, x, rstd, partials, stream);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  SumRowsKernel<<<static_cast<unsigned>(CeilDiv(shape.width, 128)), 128, 0, stream>>>(
      partials, RmsNormWeightPartials(shape), shape.width, dweight);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
