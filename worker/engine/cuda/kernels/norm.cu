// RMSNorm over rows. A row stays in registers between its sum and its result: every input is read
// once. Rows too wide for that, or of a ragged width, are read twice, the second time from a cache.
// So is a result that goes out in FP8, too, once its largest value is known.
#include "worker/engine/cuda/kernels/column_sums.cuh"
#include "worker/engine/cuda/kernels/early.cuh"
#include "worker/engine/cuda/kernels/fp8.cuh"

namespace sft::engine::cuda {
namespace {

template <typename T>
struct ForwardArguments {
  RowsShape shape;
  const T* x;
  int64_t x_stride;
  const T* weight;
  NormScaling scaling;
  const T* residual;  // may be null, or y
  int64_t residual_stride;
  T* y;
  int64_t y_stride;
  float* rstd;
  Fp8Output fp8;
  bool wide;  // all rows allow 16-byte accesses
};

template <typename T, typename Config, bool kQuantises>
__global__ void __launch_bounds__(Config::kThreads)
    RmsNormKernel(const __grid_constant__ ForwardArguments<T> a) {
  LetNextStart();
  constexpr int N = Config::kVector;
  constexpr int kStep = Config::kLanes * N;
  const int first = static_cast<int>(threadIdx.x) % Config::kLanes * N;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * Config::kRows + threadIdx.x / Config::kLanes;
  const int64_t width = row < a.shape.rows ? a.shape.width : 0;  // no lane may miss the sum
  const T* __restrict__ x = a.x + row * a.x_stride;
  const T* __restrict__ weight = a.weight;
  const T* residual = a.residual + row * a.residual_stride;
  T* y = a.y + row * a.y_stride;
  float sum = 0.0f;
  float rstd;
  const auto store = [&](int64_t c, const Packed<T, N>& xs, const Packed<T, N>& ws) {
    float ys[N];
#pragma unroll
    for (int i = 0; i < N; ++i) ys[i] = Normalised<T>(xs[i], ws[i], rstd, a.scaling.form);
    if (a.residual != nullptr) {
      const auto rs = LoadPacked<T, N>(residual + c, a.wide);
#pragma unroll
      for (int i = 0; i < N; ++i) ys[i] = rs[i] + Rounded<T>(ys[i]);
    }
    const Packed<T, N> rounded(ys);
    StorePacked(y + c, rounded, a.wide);
    return rounded;
  };
  Packed<T, N> xs[Config::kHeld];
  if constexpr (Config::kVectors > 0) {
    Packed<T, N> ws[Config::kVectors];
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      if (c < width) xs[v] = LoadPacked<T, N>(x + c, a.wide);
    }
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      if (c < width) ws[v] = LoadPacked<T, N>(weight + c, a.wide);
    }
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) sum = AddSquares(sum, xs[v]);
    rstd = Rstd(RowSum<Config::kLanes>(sum), a.shape.width, a.scaling.epsilon);
    KeepPacked(xs);
    KeepPacked(ws);
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      if (c < width) xs[v] = store(c, xs[v], ws[v]);
    }
  } else {
    for (int64_t c = first; c < width; c += kStep) {
      sum = AddSquares(sum, LoadPacked<T, N>(x + c, a.wide));
    }
    rstd = Rstd(RowSum<Config::kLanes>(sum), a.shape.width, a.scaling.epsilon);
    for (int64_t c = first; c < width; c += kStep) {
      store(c, LoadPacked<T, N>(x + c, a.wide), LoadPacked<T, N>(weight + c, a.wide));
    }
  }
  if (first == 0 && row < a.shape.rows) a.rstd[row] = rstd;
  if constexpr (kQuantises) {
    WriteFp8Row<Config>(a.fp8, row, static_cast<int>(width), xs, y, a.wide);
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
  const float* rstd;
  float plus;         // NormForm
  const T* residual;  // may be null
  int64_t residual_stride;
  T* dx;  // may be dy or residual
  int64_t dx_stride;
  Fp8Output fp8;
  bool wide;
};

// With g = dy * (plus + weight) and h = x * rstd: dx = rstd * (g - h * mean(g * h)).
template <typename T, typename Config, bool kQuantises>
__global__ void __launch_bounds__(Config::kThreads)
    RmsNormBackwardKernel(const __grid_constant__ BackwardArguments<T> a) {
  constexpr int N = Config::kVector;
  constexpr int kStep = Config::kLanes * N;
  const int first = static_cast<int>(threadIdx.x) % Config::kLanes * N;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * Config::kRows + threadIdx.x / Config::kLanes;
  const int64_t width = row < a.shape.rows ? a.shape.width : 0;
  const T* __restrict__ x = a.x + row * a.x_stride;
  const T* __restrict__ weight = a.weight;
  const T* dy = a.dy + row * a.dy_stride;
  const T* residual = a.residual + row * a.residual_stride;
  T* dx = a.dx + row * a.dx_stride;
  const float rstd = row < a.shape.rows ? a.rstd[row] : 0.0f;
  float dot = 0.0f;
  float mean;
  const auto add = [&](const Packed<T, N>& dys, const Packed<T, N>& xs, const Packed<T, N>& ws) {
#pragma unroll
    for (int i = 0; i < N; ++i) dot = __fmaf_rn(__fmul_rn(dys[i], a.plus + ws[i]), xs[i], dot);
  };
  const auto store = [&](int64_t c, const Packed<T, N>& dys, const Packed<T, N>& xs,
                         const Packed<T, N>& ws, const Packed<T, N>& rs) {
    float dxs[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      // Spelt out: each instance of the kernel is to round alike.
      const float along =
          __fmaf_rn(-__fmul_rn(xs[i], rstd), mean, __fmul_rn(dys[i], a.plus + ws[i]));
      dxs[i] = __fmaf_rn(rstd, along, rs[i]);
    }
    const Packed<T, N> rounded(dxs);
    StorePacked(dx + c, rounded, a.wide);
    return rounded;
  };
  const auto load_residual = [&](int64_t c) {
    Packed<T, N> rs;
    if (a.residual != nullptr) rs = LoadPacked<T, N>(residual + c, a.wide);
    return rs;
  };
  Packed<T, N> dys[Config::kHeld];
  if constexpr (Config::kVectors > 0) {
    Packed<T, N> xs[Config::kVectors], ws[Config::kVectors], rs[Config::kVectors];
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      if (c < width) {
        dys[v] = LoadPacked<T, N>(dy + c, a.wide);
        xs[v] = LoadPacked<T, N>(x + c, a.wide);
        ws[v] = LoadPacked<T, N>(weight + c, a.wide);
        rs[v] = load_residual(c);
      }
    }
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) add(dys[v], xs[v], ws[v]);
    mean = RowSum<Config::kLanes>(dot) * rstd / static_cast<float>(a.shape.width);
    KeepPacked(dys);
    KeepPacked(xs);
    KeepPacked(ws);
    KeepPacked(rs);
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      if (c < width) dys[v] = store(c, dys[v], xs[v], ws[v], rs[v]);
    }
  } else {
    for (int64_t c = first; c < width; c += kStep) {
      add(LoadPacked<T, N>(dy + c, a.wide), LoadPacked<T, N>(x + c, a.wide),
          LoadPacked<T, N>(weight + c, a.wide));
    }
    mean = RowSum<Config::kLanes>(dot) * rstd / static_cast<float>(a.shape.width);
    for (int64_t c = first; c < width; c += kStep) {
      store(c, LoadPacked<T, N>(dy + c, a.wide), LoadPacked<T, N>(x + c, a.wide),
            LoadPacked<T, N>(weight + c, a.wide), load_residual(c));
    }
  }
  if constexpr (kQuantises) {
    WriteFp8Row<Config>(a.fp8, row, static_cast<int>(width), dys, dx, a.wide);
  }
}

// What a row adds to the weight's gradient.
template <typename T>
struct RmsNormWeightTerms {
  using Type = T;
  static constexpr int kSums = 1;
  const T* dy;
  int64_t dy_stride;
  const T* x;
  int64_t x_stride;
  const float* rstd;
  NormForm form;

  template <int N>
  struct Held {
    Packed<T, N> x, dy;
    float rstd;
  };
  template <int N>
  __device__ __forceinline__ Held<N> Read(int64_t row, int64_t c) const {
    return {LoadPacked<T, N>(x + row * x_stride + c, true),
            LoadPacked<T, N>(dy + row * dy_stride + c, true), rstd[row]};
  }
  template <int N>
  __device__ __forceinline__ void Add(const Held<N>& held, int64_t, int64_t,
                                      float (&sums)[1][N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums[0][i] += held.dy[i] * RoundedFirst<T>(held.x[i], held.rstd, form);
    }
  }
};

// A block owns a warp of columns; each of its warps sums every kSumWarps-th row.
constexpr int kSumWarps = 16;

__global__ void __launch_bounds__(kWarp* kSumWarps)
    SumRowsKernel(const float* __restrict__ matrix, int64_t rows, int64_t width,
                  float* __restrict__ sums) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  __shared__ float shared[kSumWarps][kWarp];
  float sum = 0.0f;
  if (c < width) {
    for (int64_t row = warp; row < rows; row += kSumWarps) sum += matrix[row * width + c];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= width) return;
  sum = 0.0f;
  for (int w = 0; w < kSumWarps; ++w) sum += shared[w][lane];
  sums[c] = sum;
}

template <typename T>
cudaError_t RmsNorm(RowsShape shape, ConstRows x, const void* weight, NormScaling scaling,
                    ConstRows residual, MutableRows y, float* rstd, const Fp8Output& fp8,
                    cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(x.data, x.stride) && IsAligned<uint4>(weight) &&
                    RowsAreWide<T>(y.data, y.stride) && Fp8IsWide<kWide<T>>(fp8.rows) &&
                    (residual.data == nullptr || RowsAreWide<T>(residual.data, residual.stride));
  const ForwardArguments<T> arguments{.shape = shape,
                                      .x = static_cast<const T*>(x.data),
                                      .x_stride = x.stride,
                                      .weight = static_cast<const T*>(weight),
                                      .scaling = scaling,
                                      .residual = static_cast<const T*>(residual.data),
                                      .residual_stride = residual.stride,
                                      .y = static_cast<T*>(y.data),
                                      .y_stride = y.stride,
                                      .rstd = rstd,
                                      .fp8 = fp8,
                                      .wide = wide};
  ChooseRowConfig<T>(shape.width, [&](auto config) {
    using Config = decltype(config);
    const auto blocks = static_cast<unsigned>(CeilDiv(shape.rows, Config::kRows));
    const auto kernel =
        fp8.rows.data != nullptr ? RmsNormKernel<T, Config, true> : RmsNormKernel<T, Config, false>;
    kernel<<<blocks, Config::kThreads, 0, stream>>>(arguments);
  });
  return cudaGetLastError();
}

template <typename T>
cudaError_t RmsNormBackward(RowsShape shape, ConstRows dy, ConstRows x, const void* weight,
                            const float* rstd, NormForm form, ConstRows residual, MutableRows dx,
                            const Fp8Output& fp8, cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(dy.data, dy.stride) && RowsAreWide<T>(x.data, x.stride) &&
                    IsAligned<uint4>(weight) && RowsAreWide<T>(dx.data, dx.stride) &&
                    Fp8IsWide<kWide<T>>(fp8.rows) &&
                    (residual.data == nullptr || RowsAreWide<T>(residual.data, residual.stride));
  const BackwardArguments<T> arguments{.shape = shape,
                                       .dy = static_cast<const T*>(dy.data),
                                       .dy_stride = dy.stride,
                                       .x = static_cast<const T*>(x.data),
                                       .x_stride = x.stride,
                                       .weight = static_cast<const T*>(weight),
                                       .rstd = rstd,
                                       .plus = form.plus,
                                       .residual = static_cast<const T*>(residual.data),
                                       .residual_stride = residual.stride,
                                       .dx = static_cast<T*>(dx.data),
                                       .dx_stride = dx.stride,
                                       .fp8 = fp8,
                                       .wide = wide};
  ChooseRowConfig<T>(shape.width, [&](auto config) {
    using Config = decltype(config);
    const auto blocks = static_cast<unsigned>(CeilDiv(shape.rows, Config::kRows));
    const auto kernel = fp8.rows.data != nullptr ? RmsNormBackwardKernel<T, Config, true>
                                                 : RmsNormBackwardKernel<T, Config, false>;
    kernel<<<blocks, Config::kThreads, 0, stream>>>(arguments);
  });
  return cudaGetLastError();
}

template <typename T>
cudaError_t WeightBackward(RowsShape shape, ConstRows dy, ConstRows x, const float* rstd,
                           NormForm form, float* partials, float* dweight, cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(dy.data, dy.stride) && RowsAreWide<T>(x.data, x.stride) &&
                    shape.width % kWide<T> == 0;
  const RmsNormWeightTerms<T> terms{static_cast<const T*>(dy.data),
                                    dy.stride,
                                    static_cast<const T*>(x.data),
                                    x.stride,
                                    rstd,
                                    form};
  return LaunchColumnSums(shape, wide, terms, partials, dweight, stream);
}

}  // namespace

cudaError_t LaunchRmsNorm(ElementType type, RowsShape shape, ConstRows x, const void* weight,
                          NormScaling scaling, ConstRows residual, MutableRows y, float* rstd,
                          const Fp8Output& fp8, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? RmsNorm<float> : RmsNorm<__nv_bfloat16>;
  return run(shape, x, weight, scaling, residual, y, rstd, fp8, stream);
}

cudaError_t LaunchRmsNormBackward(ElementType type, RowsShape shape, ConstRows dy, ConstRows x,
                                  const void* weight, const float* rstd, NormForm form,
                                  ConstRows residual, MutableRows dx, const Fp8Output& fp8,
                                  cudaStream_t stream) {
  const auto run =
      type == ElementType::kFloat32 ? RmsNormBackward<float> : RmsNormBackward<__nv_bfloat16>;
  return run(shape, dy, x, weight, rstd, form, residual, dx, fp8, stream);
}

cudaError_t LaunchRmsNormWeightBackward(ElementType type, RowsShape shape, ConstRows dy,
                                        ConstRows x, const float* rstd, NormForm form,
                                        float* partials, float* dweight, cudaStream_t stream) {
  const auto run =
      type == ElementType::kFloat32 ? WeightBackward<float> : WeightBackward<__nv_bfloat16>;
  return run(shape, dy, x, rstd, form, partials, dweight, stream);
}

int64_t ColumnPartials(RowsShape shape) { return ColumnSumPartials(shape); }

cudaError_t LaunchSumRows(const float* matrix, int64_t rows, int64_t width, float* sums,
                          cudaStream_t stream) {
  SumRowsKernel<<<static_cast<unsigned>(CeilDiv(width, kWarp)), kWarp * kSumWarps, 0, stream>>>(
      matrix, rows, width, sums);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
