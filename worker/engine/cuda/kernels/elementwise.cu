// RoPE and SwiGLU: one pass over memory, 16 bytes an access.
#include "worker/engine/cuda/kernels/vec.cuh"

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
  T* low = x + token * shape.token_stride + head * 2 * shape.half + c;
  T* high = low + shape.half;
  const int64_t angle = token * shape.half + c;
  float lows[N], highs[N];
  Load(low, lows);
  Load(high, highs);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float cosine = __ldg(cos + angle + i);
    const float sine = __ldg(sin + angle + i) * direction;
    const float a = lows[i];
    const float b = highs[i];
    lows[i] = a * cosine - b * sine;
    highs[i] = b * cosine + a * sine;
  }
  Store(low, lows);
  Store(high, highs);
}

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// blockIdx.x is the row, blockIdx.y a slice of its columns.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    SwigluKernel(SwigluShape shape, const T* __restrict__ gate, const T* __restrict__ up,
                 T* __restrict__ out) {
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (c >= shape.width) return;
  float gates[N], ups[N];
  Load(gate + row * shape.gate_stride + c, gates);
  Load(up + row * shape.up_stride + c, ups);
#pragma unroll
  for (int i = 0; i < N; ++i) gates[i] = gates[i] * Sigmoid(gates[i]) * ups[i];
  Store(out + row * shape.width + c, gates);
}

// d silu(g)/dg = s * (1 + g * (1 - s)) with s = sigmoid(g).
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    SwigluBackwardKernel(SwigluShape shape, const T* __restrict__ dy, int64_t dy_stride,
                         const T* __restrict__ gate, const T* __restrict__ up,
                         T* __restrict__ dgate, T* __restrict__ dup) {
  const int64_t row = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (c >= shape.width) return;
  float gates[N], ups[N], dys[N];
  Load(gate + row * shape.gate_stride + c, gates);
  Load(up + row * shape.up_stride + c, ups);
  Load(dy + row * dy_stride + c, dys);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = gates[i];
    const float s = Sigmoid(g);
    gates[i] = dys[i] * ups[i] * s * (1.0f + g * (1.0f - s));
    ups[i] = dys[i] * g * s;
  }
  Store(dgate + row * shape.width + c, gates);
  Store(dup + row * shape.width + c, ups);
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
dim3 RowBlocks(const SwigluShape& shape) {
  return dim3(static_cast<unsigned>(shape.rows),
              static_cast<unsigned>(CeilDiv(shape.width, kThreads * N)));
}

template <typename T, int N>
cudaError_t Swiglu(SwigluShape shape, const void* gate, const void* up, void* out,
                   cudaStream_t stream) {
  SwigluKernel<T, N><<<RowBlocks<N>(shape), kThreads, 0, stream>>>(
      shape, static_cast<const T*>(gate), static_cast<const T*>(up), static_cast<T*>(out));
  return cudaGetLastError();
}

template <typename T, int N>
cudaError_t SwigluBackward(SwigluShape shape, const void* dy, int64_t dy_stride, const void* gate,
                           const void* up, void* dgate, void* dup, cudaStream_t stream) {
  SwigluBackwardKernel<T, N><<<RowBlocks<N>(shape), kThreads, 0, stream>>>(
      shape, static_cast<const T*>(dy), dy_stride, static_cast<const T*>(gate),
      static_cast<const T*>(up), static_cast<T*>(dgate), static_cast<T*>(dup));
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchRope(ElementType type, RopeShape shape, void* x, const float* cos,
                       const float* sin, bool inverse, cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    const bool wide = RowsAreWide<T>(x, shape.token_stride) && shape.half % kWide<T> == 0;
    return wide ? Rope<T, kWide<T>> : Rope<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(shape, x, cos, sin, inverse, stream);
}

cudaError_t LaunchSwiglu(ElementType type, SwigluShape shape, const void* gate, const void* up,
                         void* out, cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    const bool wide = RowsAreWide<T>(gate, shape.gate_stride) &&
                      RowsAreWide<T>(up, shape.up_stride) && RowsAreWide<T>(out, shape.width);
    return wide ? Swiglu<T, kWide<T>> : Swiglu<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(shape, gate, up, out, stream);
}

cudaError_t LaunchSwigluBackward(ElementType type, SwigluShape shape, const void* dy,
                                 int64_t dy_stride, const void* gate, const void* up, void* dgate,
                                 void* dup, cudaStream_t stream) {
  const auto choose = [&]<typename T>(T) {
    const bool wide = RowsAreWide<T>(dy, dy_stride) && RowsAreWide<T>(gate, shape.gate_stride) &&
                      RowsAreWide<T>(up, shape.up_stride) && RowsAreWide<T>(dgate, shape.width) &&
                      RowsAreWide<T>(dup, shape.width);
    return wide ? SwigluBackward<T, kWide<T>> : SwigluBackward<T, 1>;
  };
  const auto run = type == ElementType::kFloat32 ? choose(float()) : choose(__nv_bfloat16());
  return run(shape, dy, dy_stride, gate, up, dgate, dup, stream);
}

}  // namespace sft::engine::cuda
