// LayerNorm over rows, one block of threads a row. A row is read from memory once and from a cache
// after that: for its mean, its deviation and its result. In the backward a block may have a slice
// of the rows instead, one after the other, and adds up their columns on the way.
#include <algorithm>

#include "worker/engine/cuda/kernels/column_sums.cuh"

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

// With g = dy * weight and z the normed row: dx = rstd * (g - mean(g) - z * mean(g * z)). Spelt
// out, so that the kernels round alike.
__device__ __forceinline__ float Normed(float x, float mean, float rstd) {
  return __fmul_rn(__fadd_rn(x, -mean), rstd);
}
struct RowMeans {
  float level = 0.0f, along = 0.0f;  // mean(g), mean(g * z); before that their sums

  __device__ __forceinline__ void Add(float g, float z) {
    level = __fadd_rn(level, g);
    along = __fmaf_rn(g, z, along);
  }
  __device__ __forceinline__ float Gradient(float g, float z, float rstd, float residual) const {
    return __fmaf_rn(rstd, __fmaf_rn(-z, along, __fadd_rn(g, -level)), residual);
  }
};

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
  RowMeans means;
  for (int64_t c = first; c < width; c += kStep) {
    const auto xs = LoadPacked<T, N>(x + c, kIsWide);
    const auto dys = LoadPacked<T, N>(dy + c, kIsWide);
    const auto ws = LoadPacked<T, N>(a.weight + c, kIsWide);
#pragma unroll
    for (int i = 0; i < N; ++i) means.Add(__fmul_rn(dys[i], ws[i]), Normed(xs[i], mean, rstd));
  }
  const auto count = static_cast<float>(width);
  means.level = __fdiv_rn(SumOfBlock(means.level, shared[0]), count);
  means.along = __fdiv_rn(SumOfBlock(means.along, shared[1]), count);
  for (int64_t c = first; c < width; c += kStep) {
    const auto xs = LoadPacked<T, N>(x + c, kIsWide);
    const auto dys = LoadPacked<T, N>(dy + c, kIsWide);
    const auto ws = LoadPacked<T, N>(a.weight + c, kIsWide);
    Packed<T, N> rs;
    if (a.residual != nullptr) rs = LoadPacked<T, N>(residual + c, kIsWide);
    float dxs[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      dxs[i] = means.Gradient(__fmul_rn(dys[i], ws[i]), Normed(xs[i], mean, rstd), rstd, rs[i]);
    }
    StorePacked(dx + c, Packed<T, N>(dxs), kIsWide);
  }
}

// Rows of a block that also sums columns, and the most such blocks.
constexpr int64_t kRowsOfBlock = 32;
constexpr int64_t kMaxBlocks = 1024;
// Vectors of a row that a thread has then.
constexpr int kMostVectors = 2;

// The same, and the sums of columns of a slice of the rows, in their order: partials.gradients
// [blocks, 2 width] (of weight and bias), partials.columns [blocks, width] (of dx as it was
// rounded). While a row is worked on, the next is on its way.
struct Partials {
  float* gradients;
  float* columns;
};
template <typename T, int kVectors>
__global__ void __launch_bounds__(kThreads)
    LayerNormBackwardSumsKernel(const __grid_constant__ BackwardArguments<T> a,
                                int64_t rows_of_block, Partials partials) {
  constexpr int N = kWide<T>;
  constexpr int kStep = kThreads * N, kWarps = kThreads / kWarp;
  __shared__ float shared[2][2][kWarps];  // of this row, of the next
  const int width = static_cast<int>(a.shape.width), first = static_cast<int>(threadIdx.x) * N;
  const int64_t begin = blockIdx.x * rows_of_block;
  const int64_t end = begin + rows_of_block < a.shape.rows ? begin + rows_of_block : a.shape.rows;
  struct Held {
    Packed<T, N> x[kVectors], dy[kVectors], residual[kVectors];
    float mean = 0.0f, rstd = 0.0f;
  };
  const auto read = [&](int64_t row) {
    Held held;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = first + v * kStep;
      if (c >= width) continue;
      held.x[v] = LoadPacked<T, N>(a.x + row * a.x_stride + c, true);
      held.dy[v] = LoadPacked<T, N>(a.dy + row * a.dy_stride + c, true);
      if (a.residual == nullptr) continue;
      held.residual[v] = LoadPacked<T, N>(a.residual + row * a.residual_stride + c, true);
    }
    held.mean = a.statistics[row];
    held.rstd = a.statistics[a.shape.rows + row];
    return held;
  };
  Packed<T, N> ws[kVectors];
  float dweight[kVectors][N] = {}, dbias[kVectors][N] = {}, columns[kVectors][N] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (first + v * kStep < width) ws[v] = LoadPacked<T, N>(a.weight + first + v * kStep, true);
  }
  Held next;
  if (begin < end) next = read(begin);
  for (int64_t row = begin; row < end; ++row) {
    const Held held = next;
    if (row + 1 < end) next = read(row + 1);
    RowMeans means;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (first + v * kStep >= width) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float z = Normed(held.x[v][i], held.mean, held.rstd);
        means.Add(__fmul_rn(held.dy[v][i], ws[v][i]), z);
        dweight[v][i] = __fmaf_rn(held.dy[v][i], z, dweight[v][i]);
        dbias[v][i] = __fadd_rn(dbias[v][i], held.dy[v][i]);
      }
    }
    // Sums of the block, as SumOfBlock has them; of two places in turn, one barrier a row is
    // enough.
    float(&place)[2][kWarps] = shared[(row - begin) % 2];
    means.level = GroupSum<kWarp>(means.level);
    means.along = GroupSum<kWarp>(means.along);
    if (threadIdx.x % kWarp == 0) {
      place[0][threadIdx.x / kWarp] = means.level;
      place[1][threadIdx.x / kWarp] = means.along;
    }
    __syncthreads();
    means = {};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      means.level = __fadd_rn(means.level, place[0][warp]);
      means.along = __fadd_rn(means.along, place[1][warp]);
    }
    means.level = __fdiv_rn(means.level, static_cast<float>(width));
    means.along = __fdiv_rn(means.along, static_cast<float>(width));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = first + v * kStep;
      if (c >= width) continue;
      float dxs[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float z = Normed(held.x[v][i], held.mean, held.rstd);
        dxs[i] = Rounded<T>(
            means.Gradient(__fmul_rn(held.dy[v][i], ws[v][i]), z, held.rstd, held.residual[v][i]));
        columns[v][i] = __fadd_rn(columns[v][i], dxs[i]);
      }
      Store(a.dx + row * a.dx_stride + c, dxs);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = first + v * kStep;
    if (c >= width) continue;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float* gradients = partials.gradients + static_cast<int64_t>(blockIdx.x) * 2 * width + c + i;
      gradients[0] = dweight[v][i];
      gradients[width] = dbias[v][i];
      partials.columns[static_cast<int64_t>(blockIdx.x) * width + c + i] = columns[v][i];
    }
  }
}

// What a row adds to the gradients of weight and bias.
template <typename T>
struct LayerNormWeightTerms {
  using Type = T;
  static constexpr int kSums = 2;
  const T* dy;
  int64_t dy_stride;
  const T* x;
  int64_t x_stride;
  const float* statistics;
  int64_t rows;

  template <int N>
  struct Held {
    Packed<T, N> x, dy;
    float mean, rstd;
  };
  template <int N>
  __device__ __forceinline__ Held<N> Read(int64_t row, int64_t c) const {
    return {LoadPacked<T, N>(x + row * x_stride + c, true),
            LoadPacked<T, N>(dy + row * dy_stride + c, true), statistics[row],
            statistics[rows + row]};
  }
  template <int N>
  __device__ __forceinline__ void Add(const Held<N>& held, int64_t, int64_t,
                                      float (&sums)[2][N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums[0][i] += held.dy[i] * (held.x[i] - held.mean) * held.rstd;
      sums[1][i] += held.dy[i];
    }
  }
};

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
cudaError_t WeightBackward(const BackwardArguments<T>& a, float* partials, float* gradients,
                           cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(a.dy, a.dy_stride) && RowsAreWide<T>(a.x, a.x_stride) &&
                    a.shape.width % kWide<T> == 0;
  const LayerNormWeightTerms<T> terms{a.dy,       a.dy_stride,  a.x,
                                      a.x_stride, a.statistics, a.shape.rows};
  return LaunchColumnSums(a.shape, wide, terms, partials, gradients, stream);
}

// All in one pass, of rows that allow 16-byte accesses.
template <typename T>
cudaError_t BackwardInOnePass(const BackwardArguments<T>& a, const LayerNormSums& sums,
                              cudaStream_t stream) {
  const int64_t blocks = LayerNormPartials(a.shape);
  const Partials partials{sums.partials, sums.partials + blocks * 2 * a.shape.width};
  const auto kernel = a.shape.width <= kThreads * kWide<T>
                          ? LayerNormBackwardSumsKernel<T, 1>
                          : LayerNormBackwardSumsKernel<T, kMostVectors>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a, CeilDiv(a.shape.rows, blocks),
                                                                 partials);
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) {
    error = LaunchSumRows(partials.gradients, blocks, 2 * a.shape.width, sums.gradients, stream);
  }
  if (error != cudaSuccess || sums.columns == nullptr) return error;
  return LaunchSumRows(partials.columns, blocks, a.shape.width, sums.columns, stream);
}

template <typename T>
cudaError_t Backward(const BackwardArguments<T>& a, const LayerNormSums& sums,
                     cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(a.dy, a.dy_stride) && RowsAreWide<T>(a.x, a.x_stride) &&
                    RowsAreWide<T>(a.dx, a.dx_stride) && IsAligned<uint4>(a.weight) &&
                    a.shape.width % kWide<T> == 0 &&
                    (a.residual == nullptr || RowsAreWide<T>(a.residual, a.residual_stride));
  if (sums.gradients != nullptr) {
    if (wide && a.shape.width <= kMostVectors * kThreads * kWide<T>) {
      return BackwardInOnePass(a, sums, stream);
    }
    // First: dx may overwrite dy.
    const cudaError_t error = WeightBackward(a, sums.partials, sums.gradients, stream);
    if (error != cudaSuccess) return error;
  }
  const auto kernel = wide ? LayerNormBackwardKernel<T, kWide<T>> : LayerNormBackwardKernel<T, 1>;
  kernel<<<static_cast<unsigned>(a.shape.rows), kThreads, 0, stream>>>(a);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  if (sums.columns == nullptr) return cudaSuccess;
  constexpr ElementType kType =
      std::is_same_v<T, float> ? ElementType::kFloat32 : ElementType::kBFloat16;
  return LaunchColumnSumsOf(kType, a.shape, {a.dx, a.dx_stride}, sums.partials, sums.columns,
                            stream);
}

}  // namespace

cudaError_t LaunchLayerNorm(ElementType type, RowsShape shape, ConstRows x, const void* weight,
                            const void* bias, float epsilon, MutableRows y, float* statistics,
                            cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Forward<float> : Forward<__nv_bfloat16>;
  return run(shape, x, weight, bias, epsilon, y, statistics, stream);
}

int64_t LayerNormPartials(RowsShape shape) {
  return std::clamp<int64_t>(CeilDiv(shape.rows, kRowsOfBlock), 1, kMaxBlocks);
}

cudaError_t LaunchLayerNormBackward(ElementType type, RowsShape shape, ConstRows dy, ConstRows x,
                                    const void* weight, const float* statistics, ConstRows residual,
                                    MutableRows dx, const LayerNormSums& sums,
                                    cudaStream_t stream) {
  const auto run = [&]<typename T>(T) {
    const BackwardArguments<T> arguments{shape,           static_cast<const T*>(dy.data),
                                         dy.stride,       static_cast<const T*>(x.data),
                                         x.stride,        static_cast<const T*>(weight),
                                         statistics,      static_cast<const T*>(residual.data),
                                         residual.stride, static_cast<T*>(dx.data),
                                         dx.stride};
    return Backward(arguments, sums, stream);
  };
  return type == ElementType::kFloat32 ? run(float()) : run(__nv_bfloat16());
}

}  // namespace sft::engine::cuda
