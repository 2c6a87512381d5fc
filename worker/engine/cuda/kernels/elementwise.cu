// RoPE, activations, biases and sums of gradients: one pass over memory, 16 bytes an access.
#include "worker/engine/cuda/kernels/column_sums.cuh"
#include "worker/engine/cuda/kernels/early.cuh"
#include "worker/engine/cuda/kernels/fp8.cuh"
#include "worker/engine/cuda/kernels/gates.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;

// A thread turns N pairs (x[c], x[c + half]) of one head.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    RopeKernel(RopeShape shape, T* __restrict__ x, const float* __restrict__ cos,
               const float* __restrict__ sin, float direction) {
  const int64_t token = blockIdx.x;
  const int per_head = static_cast<int>(shape.half) / N;
  const int index = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  const int head = index / per_head;
  if (head >= shape.heads) return;
  const int c = (index - head * per_head) * N;
  T* low = x + token * shape.token_stride + head * shape.size + c;
  T* high = low + shape.half;
  const int64_t angle = token * shape.half + c;
  constexpr int kPart = N < 4 ? N : 4;
  float lows[N], highs[N], cosines[N], sines[N];
  Load(low, lows);
  Load(high, highs);
#pragma unroll
  for (int part = 0; part < N / kPart; ++part) {
    const auto cs = LoadPacked<float, kPart>(cos + angle + part * kPart, true);
    const auto ss = LoadPacked<float, kPart>(sin + angle + part * kPart, true);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      cosines[part * kPart + i] = cs[i];
      sines[part * kPart + i] = ss[i] * direction;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float a = lows[i];
    const float b = highs[i];
    lows[i] = RotatedLow(a, b, cosines[i], sines[i]);
    highs[i] = RotatedHigh(a, b, cosines[i], sines[i]);
  }
  Store(low, lows);
  Store(high, highs);
}

// act(gate) * up of N columns.
template <typename Gate, typename T, int N>
__device__ __forceinline__ Packed<T, N> Activated(const float (&gates)[N], const float (&ups)[N]) {
  float products[N];
#pragma unroll
  for (int i = 0; i < N; ++i) products[i] = Gate::Product(gates[i], ups[i]);
  return Packed<T, N>(products);
}

// blockIdx.x is the row, blockIdx.y a slice of its columns.
template <typename Gate, typename T, int N>
__global__ void __launch_bounds__(kThreads)
    GluKernel(RowsShape shape, const T* __restrict__ gate_up, int64_t gate_up_stride,
              T* __restrict__ out, int64_t out_stride) {
  LetNextStart();
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (c >= shape.width) return;
  float gates[N], ups[N];
  LoadGates<Gate>(gate_up + row * gate_up_stride, c, shape.width, gates, ups);
  StorePacked(out + row * out_stride + c, Activated<Gate, T, N>(gates, ups), true);
}

// As GluKernel, and in FP8, too: a block has a whole row, whose results stay in registers until
// the largest of them is known. These are few enough that a multiprocessor has 1,024 threads: while
// one block waits for its row's, another loads.
template <typename Gate, typename T, typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1024 / Config::kThreads)
    GluToFp8Kernel(int width, const T* __restrict__ gate_up, int64_t gate_up_stride,
                   T* __restrict__ out, int64_t out_stride, Fp8Output fp8) {
  constexpr int N = Config::kVector;
  constexpr int kStep = Config::kLanes * N;
  constexpr int kGroup = Config::kHeld < 2 ? 1 : 2;  // vectors of each half loaded at a time
  const int first = static_cast<int>(threadIdx.x) * N;
  const T* row = gate_up + blockIdx.x * gate_up_stride;
  T* to = out + blockIdx.x * out_stride;
  Packed<T, N> held[Config::kHeld], firsts[kGroup], seconds[kGroup];
  const auto load = [&](int u, int c) {
    firsts[u] = LoadPacked<T, N>(row + FirstPlace<Gate, N>(c), true);
    seconds[u] = LoadPacked<T, N>(row + SecondPlace<Gate, N>(c, width), true);
  };
  const auto store = [&](int u, int c) {
    float gates[N], ups[N];
    SplitGates<Gate>(firsts[u], seconds[u], gates, ups);
    const Packed<T, N> made = Activated<Gate, T, N>(gates, ups);
    StorePacked(to + c, made, true);
    return made;
  };
  if constexpr (Config::kVectors > 0) {
#pragma unroll
    for (int v = 0; v < Config::kVectors; v += kGroup) {
#pragma unroll
      for (int u = 0; u < kGroup; ++u) {
        const int c = first + (v + u) * kStep;
        if (c < width) load(u, c);
      }
#pragma unroll
      for (int u = 0; u < kGroup; ++u) {
        const int c = first + (v + u) * kStep;
        if (c < width) held[v + u] = store(u, c);
      }
    }
  } else {
    for (int c = first; c < width; c += kStep) {
      load(0, c);
      store(0, c);
    }
  }
  WriteFp8Row<Config>(fp8, blockIdx.x, width, held, to, /*wide=*/true);
}

// A thread reads its elements before it writes them: dgate_up may be gate_up.
template <typename Gate, typename T, int N>
__global__ void __launch_bounds__(kThreads)
    GluBackwardKernel(RowsShape shape, const T* __restrict__ dy, int64_t dy_stride,
                      const T* gate_up, int64_t gate_up_stride, T* dgate_up,
                      int64_t dgate_up_stride) {
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (c >= shape.width) return;
  float gates[N], ups[N], dys[N];
  LoadGates<Gate>(gate_up + row * gate_up_stride, c, shape.width, gates, ups);
  Load(dy + row * dy_stride + c, dys);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const GateGradients d = Gate::Backward(dys[i], gates[i], ups[i]);
    gates[i] = d.gate;
    ups[i] = d.up;
  }
  StoreGates<Gate>(dgate_up + row * dgate_up_stride, c, shape.width, gates, ups);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    AddBiasKernel(RowsShape shape, T* __restrict__ y, int64_t y_stride,
                  const T* __restrict__ bias) {
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (c >= shape.width) return;
  float ys[N], bs[N];
  Load(y + row * y_stride + c, ys);
  Load(bias + c, bs);
#pragma unroll
  for (int i = 0; i < N; ++i) ys[i] += bs[i];
  Store(y + row * y_stride + c, ys);
}

// act(x) of N columns, and its gradient: a gated activation whose `up` is 1.
template <typename Gate, typename T, int N>
__global__ void __launch_bounds__(kThreads)
    ActivateKernel(RowsShape shape, const T* __restrict__ x, int64_t x_stride, T* __restrict__ out,
                   int64_t out_stride) {
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (c >= shape.width) return;
  float xs[N];
  Load(x + row * x_stride + c, xs);
#pragma unroll
  for (int i = 0; i < N; ++i) xs[i] = Gate::Product(xs[i], 1.0f);
  Store(out + row * out_stride + c, xs);
}
template <typename Gate, typename T, int N>
__global__ void __launch_bounds__(kThreads)
    ActivateBackwardKernel(RowsShape shape, const T* __restrict__ dy, int64_t dy_stride, const T* x,
                           int64_t x_stride, T* dx, int64_t dx_stride) {
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (c >= shape.width) return;
  float xs[N], dys[N];
  Load(x + row * x_stride + c, xs);
  Load(dy + row * dy_stride + c, dys);
#pragma unroll
  for (int i = 0; i < N; ++i) xs[i] = Gate::Backward(dys[i], xs[i], 1.0f).gate;
  Store(dx + row * dx_stride + c, xs);
}

template <typename T>
struct ColumnTerms {
  using Type = T;
  static constexpr int kSums = 1;
  const T* x;
  int64_t stride;

  template <int N>
  __device__ __forceinline__ Packed<T, N> Read(int64_t row, int64_t c) const {
    return LoadPacked<T, N>(x + row * stride + c, true);
  }
  template <int N>
  __device__ __forceinline__ void Add(const Packed<T, N>& held, int64_t, int64_t,
                                      float (&sums)[1][N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[0][i] += held[i];
  }
};

// A thread adds N elements of T, kPart of the sums at a time; the last may have fewer.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    AccumulateKernel(int64_t n, const T* __restrict__ part, bool fresh, float* __restrict__ sum) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (first + N > n) {
    for (int64_t i = first; i < n; ++i) sum[i] = ToFloat(part[i]) + (fresh ? 0.0f : sum[i]);
    return;
  }
  constexpr int kPart = N < 4 ? N : 4;
  float added[N];
  Load(part + first, added);
#pragma unroll
  for (int begin = 0; begin < N; begin += kPart) {
    float sums[kPart] = {};
    if (!fresh) Load(sum + first + begin, sums);
#pragma unroll
    for (int i = 0; i < kPart; ++i) sums[i] += added[begin + i];
    Store(sum + first + begin, sums);
  }
}

template <typename T, int N>
cudaError_t Accumulate(int64_t n, const void* part, bool fresh, float* sum, cudaStream_t stream) {
  AccumulateKernel<T, N><<<static_cast<unsigned>(CeilDiv(n, kThreads * N)), kThreads, 0, stream>>>(
      n, static_cast<const T*>(part), fresh, sum);
  return cudaGetLastError();
}

template <typename T, int N>
cudaError_t Rope(RopeShape shape, void* x, const float* cos, const float* sin, bool inverse,
                 cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(shape.tokens),
                    static_cast<unsigned>(CeilDiv(shape.heads * shape.half / N, kThreads)));
  RopeKernel<T, N><<<blocks, kThreads, 0, stream>>>(shape, static_cast<T*>(x), cos, sin,
                                                    inverse ? -1.0f : 1.0f);
  return cudaGetLastError();
}

template <int N>
dim3 RowBlocks(const RowsShape& shape) {
  return dim3(static_cast<unsigned>(shape.rows),
              static_cast<unsigned>(CeilDiv(shape.width, kThreads * N)));
}

template <typename Gate, typename T, int N>
cudaError_t Glu(RowsShape shape, ConstRows gate_up, MutableRows out, cudaStream_t stream) {
  GluKernel<Gate, T, N><<<RowBlocks<N>(shape), kThreads, 0, stream>>>(
      shape, static_cast<const T*>(gate_up.data), gate_up.stride, static_cast<T*>(out.data),
      out.stride);
  return cudaGetLastError();
}

template <typename Gate, typename T>
cudaError_t GluToFp8(RowsShape shape, ConstRows gate_up, MutableRows out, const Fp8Output& fp8,
                     bool wide, cudaStream_t stream) {
  wide = wide && Fp8IsWide<kWide<T>>(fp8.rows);
  ChooseBlockConfig<T>(shape.width, wide, [&](auto config) {
    using Config = decltype(config);
    GluToFp8Kernel<Gate, T, Config>
        <<<static_cast<unsigned>(shape.rows), Config::kThreads, 0, stream>>>(
            static_cast<int>(shape.width), static_cast<const T*>(gate_up.data), gate_up.stride,
            static_cast<T*>(out.data), out.stride, fp8);
  });
  return cudaGetLastError();
}

template <typename Gate, typename T, int N>
cudaError_t GluBackward(RowsShape shape, ConstRows dy, ConstRows gate_up, MutableRows dgate_up,
                        cudaStream_t stream) {
  GluBackwardKernel<Gate, T, N><<<RowBlocks<N>(shape), kThreads, 0, stream>>>(
      shape, static_cast<const T*>(dy.data), dy.stride, static_cast<const T*>(gate_up.data),
      gate_up.stride, static_cast<T*>(dgate_up.data), dgate_up.stride);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchAccumulate(ElementType type, int64_t n, const void* part, bool fresh, float* sum,
                             cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    return IsAligned<uint4>(part) && IsAligned<uint4>(sum) ? Accumulate<T, kWide<T>>
                                                           : Accumulate<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(n, part, fresh, sum, stream);
}

cudaError_t LaunchRope(ElementType type, RopeShape shape, void* x, const float* cos,
                       const float* sin, bool inverse, cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    const bool wide = RowsAreWide<T>(x, shape.token_stride) && shape.half % kWide<T> == 0 &&
                      shape.size % kWide<T> == 0 && IsAligned<uint4>(cos) && IsAligned<uint4>(sin);
    return wide ? Rope<T, kWide<T>> : Rope<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(shape, x, cos, sin, inverse, stream);
}

cudaError_t LaunchGlu(ElementType type, RowsShape shape, plan::ActivationKind kind,
                      ConstRows gate_up, MutableRows out, const Fp8Output& fp8,
                      cudaStream_t stream) {
  const auto run = [&]<typename T, typename Gate>(T, Gate) {
    const bool wide = RowsAreWide<T>(gate_up.data, gate_up.stride) &&
                      RowsAreWide<T>(out.data, out.stride) && shape.width % kWide<T> == 0;
    if (fp8.rows.data != nullptr) return GluToFp8<Gate, T>(shape, gate_up, out, fp8, wide, stream);
    return (wide ? Glu<Gate, T, kWide<T>> : Glu<Gate, T, 1>)(shape, gate_up, out, stream);
  };
  return WithAnyGate(kind, [&](auto gate) {
    return type == ElementType::kFloat32 ? run(float(), gate) : run(__nv_bfloat16(), gate);
  });
}

cudaError_t LaunchAddBias(ElementType type, RowsShape shape, MutableRows y, const void* bias,
                          cudaStream_t stream) {
  const auto run = [&]<typename T>(T) {
    const bool wide =
        RowsAreWide<T>(y.data, y.stride) && IsAligned<uint4>(bias) && shape.width % kWide<T> == 0;
    const auto kernel = wide ? AddBiasKernel<T, kWide<T>> : AddBiasKernel<T, 1>;
    kernel<<<wide ? RowBlocks<kWide<T>>(shape) : RowBlocks<1>(shape), kThreads, 0, stream>>>(
        shape, static_cast<T*>(y.data), y.stride, static_cast<const T*>(bias));
    return cudaGetLastError();
  };
  return type == ElementType::kFloat32 ? run(float()) : run(__nv_bfloat16());
}

cudaError_t LaunchActivate(ElementType type, RowsShape shape, plan::ActivationKind kind,
                           ConstRows x, MutableRows out, cudaStream_t stream) {
  const auto run = [&]<typename T, typename Gate>(T, Gate) {
    const bool wide = RowsAreWide<T>(x.data, x.stride) && RowsAreWide<T>(out.data, out.stride) &&
                      shape.width % kWide<T> == 0;
    const auto kernel = wide ? ActivateKernel<Gate, T, kWide<T>> : ActivateKernel<Gate, T, 1>;
    kernel<<<wide ? RowBlocks<kWide<T>>(shape) : RowBlocks<1>(shape), kThreads, 0, stream>>>(
        shape, static_cast<const T*>(x.data), x.stride, static_cast<T*>(out.data), out.stride);
    return cudaGetLastError();
  };
  return WithGate(kind, [&](auto gate) {
    return type == ElementType::kFloat32 ? run(float(), gate) : run(__nv_bfloat16(), gate);
  });
}

cudaError_t LaunchActivateBackward(ElementType type, RowsShape shape, plan::ActivationKind kind,
                                   ConstRows dy, ConstRows x, MutableRows dx, cudaStream_t stream) {
  const auto run = [&]<typename T, typename Gate>(T, Gate) {
    const bool wide = RowsAreWide<T>(x.data, x.stride) && RowsAreWide<T>(dy.data, dy.stride) &&
                      RowsAreWide<T>(dx.data, dx.stride) && shape.width % kWide<T> == 0;
    const auto kernel =
        wide ? ActivateBackwardKernel<Gate, T, kWide<T>> : ActivateBackwardKernel<Gate, T, 1>;
    kernel<<<wide ? RowBlocks<kWide<T>>(shape) : RowBlocks<1>(shape), kThreads, 0, stream>>>(
        shape, static_cast<const T*>(dy.data), dy.stride, static_cast<const T*>(x.data), x.stride,
        static_cast<T*>(dx.data), dx.stride);
    return cudaGetLastError();
  };
  return WithGate(kind, [&](auto gate) {
    return type == ElementType::kFloat32 ? run(float(), gate) : run(__nv_bfloat16(), gate);
  });
}

cudaError_t LaunchColumnSumsOf(ElementType type, RowsShape shape, ConstRows x, float* partials,
                               float* sums, cudaStream_t stream) {
  const auto run = [&]<typename T>(T) {
    const bool wide = RowsAreWide<T>(x.data, x.stride) && shape.width % kWide<T> == 0;
    const ColumnTerms<T> terms{static_cast<const T*>(x.data), x.stride};
    return LaunchColumnSums(shape, wide, terms, partials, sums, stream);
  };
  return type == ElementType::kFloat32 ? run(float()) : run(__nv_bfloat16());
}

cudaError_t LaunchGluBackward(ElementType type, RowsShape shape, plan::ActivationKind kind,
                              ConstRows dy, ConstRows gate_up, MutableRows dgate_up,
                              cudaStream_t stream) {
  const auto choose = [&]<typename T, typename Gate>(T, Gate) {
    const bool wide = RowsAreWide<T>(dy.data, dy.stride) &&
                      RowsAreWide<T>(gate_up.data, gate_up.stride) &&
                      RowsAreWide<T>(dgate_up.data, dgate_up.stride) && shape.width % kWide<T> == 0;
    return wide ? GluBackward<Gate, T, kWide<T>> : GluBackward<Gate, T, 1>;
  };
  return WithAnyGate(kind, [&](auto gate) {
    const auto run =
        type == ElementType::kFloat32 ? choose(float(), gate) : choose(__nv_bfloat16(), gate);
    return run(shape, dy, gate_up, dgate_up, stream);
  });
}

}  // namespace sft::engine::cuda
