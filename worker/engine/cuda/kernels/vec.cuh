// Wide loads and stores, and reductions with a fixed order, shared by the kernels of this folder.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// What a value is once it has been stored as T.
template <typename T>
__device__ __forceinline__ float Rounded(float x) {
  return ToFloat(FromFloat<T>(x));
}

// N values moved as one access.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T values[N];
};

// Elements in one 16-byte access, the widest that a thread has.
template <typename T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <typename T, int N>
__device__ __forceinline__ void Load(const T* from, float (&x)[N]) {
  const Vec<T, N> vec = *reinterpret_cast<const Vec<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = ToFloat(vec.values[i]);
}

template <typename T, int N>
__device__ __forceinline__ void Store(T* to, const float (&x)[N]) {
  Vec<T, N> vec;
#pragma unroll
  for (int i = 0; i < N; ++i) vec.values[i] = FromFloat<T>(x[i]);
  *reinterpret_cast<Vec<T, N>*>(to) = vec;
}

// N values as they lie in memory: one access where `wide` (all threads agree), else one by one.
template <typename T, int N>
__device__ __forceinline__ Vec<T, N> LoadRaw(const T* from, bool wide) {
  if (wide) return *reinterpret_cast<const Vec<T, N>*>(from);
  Vec<T, N> vec;
#pragma unroll
  for (int i = 0; i < N; ++i) vec.values[i] = from[i];
  return vec;
}

template <typename T, int N>
__device__ __forceinline__ void StoreRaw(T* to, const Vec<T, N>& vec, bool wide) {
  if (wide) {
    *reinterpret_cast<Vec<T, N>*>(to) = vec;
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = vec.values[i];
}

template <typename T, int N>
__device__ __forceinline__ void Clear(Vec<T, N>& vec) {
#pragma unroll
  for (int i = 0; i < N; ++i) vec.values[i] = FromFloat<T>(0.0f);
}

// Sum over groups of kLanes neighbouring lanes (kLanes a power of two up to a warp); all get it.
template <int kLanes>
__device__ __forceinline__ float GroupSum(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

// Sum over a block of kThreads (a multiple of the warp); all threads get it. `shared` holds one
// float a warp, and may be used again after the call.
template <int kThreads>
__device__ __forceinline__ float BlockSum(float x, float* shared) {
  x = GroupSum<kWarp>(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  x = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kThreads / kWarp; ++warp) x += shared[warp];
  __syncthreads();
  return x;
}

// ---- host side ----

template <typename T>
inline bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(T) == 0;
}

// Whether every row of a matrix whose rows start every `stride` elements is on a 16-byte boundary.
template <typename T>
inline bool RowsAreWide(const void* pointer, int64_t stride) {
  return IsAligned<uint4>(pointer) && stride % kWide<T> == 0;
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace sft::engine::cuda
