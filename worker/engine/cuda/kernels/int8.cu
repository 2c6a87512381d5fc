#include "worker/engine/cuda/kernels/int8.h"
#include "worker/engine/cuda/kernels/vec.cuh"
#include "worker/engine/kernels/int8_format.h"

namespace sft::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // loads in flight before the first use, in de-quantisation

// A thread a vector of N elements, which lie in one row.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const T* __restrict__ weight, const float* __restrict__ absmax, int64_t vectors,
                   int64_t vectors_per_row, int8_t* __restrict__ codes) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) return;
  const Packed<T, N> x = LoadPacked<T, N>(weight + at * N, true);
  const float largest = absmax[at / vectors_per_row];
  const float inverse = largest >= kInt8Smallest ? __fdiv_rn(kInt8Largest, largest) : 0.0f;
  Vec<int8_t, N> packed;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float code = rintf(__fmul_rn(x[i], inverse));
    packed.values[i] = static_cast<int8_t>(fmaxf(-kInt8Largest, fminf(kInt8Largest, code)));
  }
  *reinterpret_cast<Vec<int8_t, N>*>(codes + at * N) = packed;
}

// kUnroll vectors a thread.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
    DequantizeKernel(const int8_t* __restrict__ codes, const float* __restrict__ scales,
                     int64_t vectors, int64_t vectors_per_row, T* __restrict__ out,
                     int64_t stride) {
  int64_t at = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  // One division a thread: the vectors that follow are found by walking on.
  int64_t row = at / vectors_per_row;
  int64_t column = at - row * vectors_per_row;
  Vec<int8_t, N> packed[kUnroll];
  float scale[kUnroll];
  T* to[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    to[u] = nullptr;
    if (at >= vectors) continue;
    packed[u] = *reinterpret_cast<const Vec<int8_t, N>*>(codes + at * N);
    scale[u] = scales[row];
    to[u] = out + row * stride + column * N;
    at += kThreads;
    for (column += kThreads; column >= vectors_per_row; column -= vectors_per_row) ++row;
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (to[u] == nullptr) return;
    float x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = __fmul_rn(static_cast<float>(packed[u].values[i]), scale[u]);
    }
    StorePacked<T, N>(to[u], Packed<T, N>(x), true);
  }
}

template <typename T, int N>
cudaError_t RunQuantize(Int8Shape shape, const void* weight, const float* absmax, int8_t* codes,
                        cudaStream_t stream) {
  const int64_t per_row = shape.columns / N, vectors = shape.rows * per_row;
  QuantizeKernel<T, N><<<static_cast<unsigned>(CeilDiv(vectors, kThreads)), kThreads, 0, stream>>>(
      static_cast<const T*>(weight), absmax, vectors, per_row, codes);
  return cudaGetLastError();
}

template <typename T, int N>
cudaError_t RunDequantize(Int8Shape shape, const int8_t* codes, const float* scale, MutableRows out,
                          cudaStream_t stream) {
  const int64_t per_row = shape.columns / N, vectors = shape.rows * per_row;
  const auto blocks = static_cast<unsigned>(CeilDiv(vectors, kThreads * kUnroll));
  DequantizeKernel<T, N><<<blocks, kThreads, 0, stream>>>(codes, scale, vectors, per_row,
                                                          static_cast<T*>(out.data), out.stride);
  return cudaGetLastError();
}

// Whether vectors of codes that stand for one 16-byte access lie in one row, aligned.
template <typename T>
bool CodesAreWide(Int8Shape shape, const int8_t* codes) {
  return shape.columns % kWide<T> == 0 && IsAligned<Vec<int8_t, kWide<T>>>(codes);
}

template <typename T>
cudaError_t Quantize(Int8Shape shape, const void* weight, const float* absmax, int8_t* codes,
                     cudaStream_t stream) {
  const bool wide = IsAligned<uint4>(weight) && CodesAreWide<T>(shape, codes);
  const auto run = wide ? RunQuantize<T, kWide<T>> : RunQuantize<T, 1>;
  return run(shape, weight, absmax, codes, stream);
}

template <typename T>
cudaError_t Dequantize(Int8Shape shape, const int8_t* codes, const float* scale, MutableRows out,
                       cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(out.data, out.stride) && CodesAreWide<T>(shape, codes);
  const auto run = wide ? RunDequantize<T, kWide<T>> : RunDequantize<T, 1>;
  return run(shape, codes, scale, out, stream);
}

}  // namespace

cudaError_t LaunchInt8Quantize(ElementType type, Int8Shape shape, const void* weight,
                               const float* absmax, int8_t* codes, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Quantize<float> : Quantize<__nv_bfloat16>;
  return run(shape, weight, absmax, codes, stream);
}

cudaError_t LaunchInt8Dequantize(ElementType type, Int8Shape shape, const int8_t* codes,
                                 const float* scale, MutableRows out, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Dequantize<float> : Dequantize<__nv_bfloat16>;
  return run(shape, codes, scale, out, stream);
}

}  // namespace sft::engine::cuda
