// LayerNorm over rows, one block of threads a row. A row is read from memory once and from a cache
// after that: for its mean, its deviation and its result.
#include <algorithm>

#include "worker/engine/cuda/kernels/rows.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 128;

// Sum over the block; all threads get it. `shared` is used once a call.
__device__ __forceinline__ float SumOfBlock(float x, float* shared) {
  return BlockSum<kThreads>(x, shared);
}

template <typename T>
struct ForwardArguments {
  RowsShape shape;
  const T* x;
  int64_t x_stride;
  const T* weight;
  const T* bias;
  float epsilon;
  T* y;
  int64_t y_stride;
  float* statistics;  // means, then rstds
};

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    LayerNormKernel(const __grid_constant__ ForwardArguments<T> a) {
  __shared__ float shared[2][kThreads / kWarp];
  constexpr bool kIsWide = N > 1;
  const int64_t row = blockIdx.x, width = a.shape.width;
  const T* __restrict__ x = a.x + row * a.x_stride;
  T* __restrict__ y = a.y + row * a.y_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  constexpr int64_t kStep = kThreads * N;
  float sum = 0.0f;
  for (int64_t c = first; c < width; c += kStep) {
    const auto xs = LoadPacked<T, N>(x + c, kIsWide);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += xs[i];
  }
  const float mean = SumOfBlock(sum, shared[0]) / static_cast<float>(width);
  float squares = 0.0f;
  for (int64_t c = first; c < width; c += kStep) {
    const auto xs = LoadPacked<T, N>(x + c, kIsWide);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (xs[i] - mean) * (xs[i] - mean);
  }
  const float rstd = Rstd(SumOfBlock(squares, shared[1]), width, a.epsilon);
  for (int64_t c = first; c < width; c += kStep) {
    const auto xs = LoadPacked<T, N>(x + c, kIsWide);
    const auto ws = LoadPacked<T, N>(a.weight + c, kIsWide);
    const auto bs = LoadPacked<T, N>(a.bias + c, kIsWide);
    float ys[N];
#pragma unroll
    for (int i = 0; i < N; ++i) ys[i] = (xs[i] - mean) * rstd * ws[i] + bs[i];
    StorePacked(y + c, Packed<T, N>(ys), kIsWide);
  }
  if (threadIdx.x == 0) {
    a.statistics[row] = mean;
    a.statistics[a.shape.rows + row] = rstd;
  }
}

template <typename T>
struct BackwardArguments {
  RowsShape shape;
  const T* dy;
  int64_t dy_stride;
  const T* x;
  int64_t x_stride;
  const T* weight;
  const float* statistics;
  const T* residual;  // may be null
  int64_t residual_stride;
  T* dx;  // may be dy or residual
  int64_t dx_stride;
};

// With g = dy * weight and z the normed row: dx = rstd * (g - mean(g) - z * mean(g * z)).
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    LayerNormBackwardKernel(const __grid_constant__ BackwardArguments<T> a) {
  __shared__ float shared[2][kThreads / kWarp];
  constexpr bool kIsWide = N > 1;
  const int64_t row = blockIdx.x, width = a.shape.width;
  const T* __restrict__ x = a.x + row * a.x_stride;
  const T* dy = a.dy + row * a.dy_stride;
  const T* residual = a.residual + row * a.residual_stride;
  T* dx = a.dx + row * a.dx_stride;
  const float mean = a.statistics[row], rstd = a.statistics[a.shape.rows + row];
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  constexpr int64_t kStep = kThreads * N;
  float level = 0.0f, along = 0.0f;
  for (int64_t c = first; c < width; c += kStep) {
    const auto xs = LoadPacked<T, N>(x + c, kIsWide);
    const auto dys = LoadPacked<T, N>(dy + c, kIsWide);
    const auto ws = LoadPacked<T, N>(a.weight + c, kIsWide);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = dys[i] * ws[i];
      level += g;
      along += g * (xs[i] - mean) * rstd;
    }
  }
  const auto count = static_cast<float>(width);
  level = SumOfBlock(level, shared[0]) / count;
  along = SumOfBlock(along, shared[1]) / count;
  for (int64_t c = first; c < width; c += kStep) {
    const auto xs = LoadPacked<T, N>(x + c, kIsWide);
    const auto dys = LoadPacked<T, N>(dy + c, kIsWide);
    const auto ws = LoadPacked<T, N>(a.weight + c, kIsWide);
    Packed<T, N> rs;
    if (a.residual != nullptr) rs = LoadPacked<T, N>(residual + c, kIsWide);
    float dxs[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float z = (xs[i] - mean) * rstd;
      dxs[i] = rstd * (dys[i] * ws[i] - level - z * along) + rs[i];
    }
    StorePacked(dx + c, Packed<T, N>(dxs), kIsWide);
  }
}

// A block owns kColumns columns and a slice of the rows; its row lanes walk the slice with a
// stride, then their sums are added in a fixed order.
constexpr int kColumns = 32;
constexpr int kRowLanes = 8;
constexpr int64_t kRowsPerSlice = 256;
constexpr int64_t kMaxSlices = 256;

template <typename T>
__global__ void __launch_bounds__(kColumns* kRowLanes)
    LayerNormWeightPartialKernel(RowsShape shape, int64_t rows_per_slice, const T* __restrict__ dy,
                                 int64_t dy_stride, const T* __restrict__ x, int64_t x_stride,
                                 const float* __restrict__ statistics,
                                 float* __restrict__ partials) {
  __shared__ float shared[2][kRowLanes][kColumns];
  const int column = threadIdx.x % kColumns, lane = threadIdx.x / kColumns;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumns + column;
  const int64_t first = blockIdx.y * rows_per_slice;
  const int64_t last = first + rows_per_slice < shape.rows ? first + rows_per_slice : shape.rows;
  float dweight = 0.0f, dbias = 0.0f;
  if (c < shape.width) {
    for (int64_t row = first + lane; row < last; row += kRowLanes) {
      const float d = ToFloat(dy[row * dy_stride + c]);
      const float mean = statistics[row], rstd = statistics[shape.rows + row];
      dweight += d * (ToFloat(x[row * x_stride + c]) - mean) * rstd;
      dbias += d;
    }
  }
  shared[0][lane][column] = dweight;
  shared[1][lane][column] = dbias;
  __syncthreads();
  if (lane > 1 || c >= shape.width) return;
  float sum = 0.0f;
  for (int r = 0; r < kRowLanes; ++r) sum += shared[lane][r][column];
  partials[(blockIdx.y * 2 + lane) * shape.width + c] = sum;
}

template <typename T>
cudaError_t Forward(RowsShape shape, ConstRows x, const void* weight, const void* bias,
                    float epsilon, MutableRows y, float* statistics, cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(x.data, x.stride) && RowsAreWide<T>(y.data, y.stride) &&
                    IsAligned<uint4>(weight) && IsAligned<uint4>(bias) &&
                    shape.width % kWide<T> == 0;
  const ForwardArguments<T> arguments{shape,
                                      static_cast<const T*>(x.data),
                                      x.stride,
                                      static_cast<const T*>(weight),
                                      static_cast<const T*>(bias),
                                      epsilon,
                                      static_cast<T*>(y.data),
                                      y.stride,
                                      statistics};
  const auto kernel = wide ? LayerNormKernel<T, kWide<T>> : LayerNormKernel<T, 1>;
  kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

template <typename T>
cudaError_t Backward(RowsShape shape, ConstRows dy, ConstRows x, const void* weight,
                     const float* statistics, ConstRows residual, MutableRows dx,
                     cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(dy.data, dy.stride) && RowsAreWide<T>(x.data, x.stride) &&
                    RowsAreWide<T>(dx.data, dx.stride) && IsAligned<uint4>(weight) &&
                    shape.width % kWide<T> == 0 &&
                    (residual.data == nullptr || RowsAreWide<T>(residual.data, residual.stride));
  const BackwardArguments<T> arguments{shape,           static_cast<const T*>(dy.data),
                                       dy.stride,       static_cast<const T*>(x.data),
                                       x.stride,        static_cast<const T*>(weight),
                                       statistics,      static_cast<const T*>(residual.data),
                                       residual.stride, static_cast<T*>(dx.data),
                                       dx.stride};
  const auto kernel = wide ? LayerNormBackwardKernel<T, kWide<T>> : LayerNormBackwardKernel<T, 1>;
  kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

template <typename T>
void WeightPartials(RowsShape shape, ConstRows dy, ConstRows x, const float* statistics,
                    float* partials, cudaStream_t stream) {
  const int64_t slices = LayerNormWeightPartials(shape);
  const dim3 blocks(static_cast<unsigned>(CeilDiv(shape.width, kColumns)),
                    static_cast<unsigned>(slices));
  LayerNormWeightPartialKernel<T><<<blocks, kColumns * kRowLanes, 0, stream>>>(
      shape, CeilDiv(shape.rows, slices), static_cast<const T*>(dy.data), dy.stride,
      static_cast<const T*>(x.data), x.stride, statistics, partials);
}

}  // namespace

cudaError_t LaunchLayerNorm(ElementType type, RowsShape shape, ConstRows x, const void* weight,
                            const void* bias, float epsilon, MutableRows y, float* statistics,
                            cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Forward<float> : Forward<__nv_bfloat16>;
  return run(shape, x, weight, bias, epsilon, y, statistics, stream);
}

cudaError_t LaunchLayerNormBackward(ElementType type, RowsShape shape, ConstRows dy, ConstRows x,
                                    const void* weight, const float* statistics, ConstRows residual,
                                    MutableRows dx, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Backward<float> : Backward<__nv_bfloat16>;
  return run(shape, dy, x, weight, statistics, residual, dx, stream);
}

int64_t LayerNormWeightPartials(RowsShape shape) {
  return std::clamp<int64_t>(CeilDiv(shape.rows, kRowsPerSlice), 1, kMaxSlices);
}

cudaError_t LaunchLayerNormWeightBackward(ElementType type, RowsShape shape, ConstRows dy,
                                          ConstRows x, const float* statistics, float* partials,
                                          float* gradients, cudaStream_t stream) {
  const auto run =
      type == ElementType::kFloat32 ? WeightPartials<float> : WeightPartials<__nv_bfloat16>;
  run(shape, dy, x, statistics, partials, stream);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return LaunchSumRows(partials, LayerNormWeightPartials(shape), 2 * shape.width, gradients,
                       stream);
}

}  // namespace sft::engine::cuda
