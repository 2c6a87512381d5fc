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

// N values of T in as few registers as they have words. bf16 comes two to a word: kept one by one,
// each would take a register.
template <typename T, int N>
struct alignas(sizeof(T) * N) Packed {
  T values[N] = {};
  __device__ __forceinline__ Packed() = default;
  __device__ __forceinline__ explicit Packed(const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = FromFloat<T>(x[i]);
  }
  __device__ __forceinline__ float operator[](int i) const { return ToFloat(values[i]); }
};
template <int N>
  requires(N % 2 == 0)
struct alignas(2 * N) Packed<__nv_bfloat16, N> {
  uint32_t words[N / 2] = {};
  __device__ __forceinline__ Packed() = default;
  __device__ __forceinline__ explicit Packed(const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      words[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  __device__ __forceinline__ float operator[](int i) const {
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
  }
};

// One access where `wide` (all threads agree), else one a value.
template <typename T, int N>
__device__ __forceinline__ Packed<T, N> LoadPacked(const T* from, bool wide) {
  if (wide) return *reinterpret_cast<const Packed<T, N>*>(from);
  float x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = ToFloat(from[i]);
  return Packed<T, N>(x);
}

template <typename T, int N>
__device__ __forceinline__ void StorePacked(T* to, const Packed<T, N>& x, bool wide) {
  if (wide) {
    *reinterpret_cast<Packed<T, N>*>(to) = x;
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = FromFloat<T>(x[i]);
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
