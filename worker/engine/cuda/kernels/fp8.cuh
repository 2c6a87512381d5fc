// FP8 (e4m3) in kernels: the conversions, which are the hardware's (to nearest even, saturating),
// and a row that is written in FP8 by the threads that made or read it. The largest of a row's
// magnitudes is the same in any order, so that all kernels give a row the same bits.
#pragma once

#include <cuda_fp8.h>

#include "worker/engine/cuda/kernels/rows.cuh"

namespace sft::engine::cuda {

__device__ __forceinline__ uint32_t TwoFp8(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ uint32_t FourFp8(const float (&x)[4]) {
  return TwoFp8(x[0], x[1]) | TwoFp8(x[2], x[3]) << 16;
}
__device__ __forceinline__ uint8_t OneFp8(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// N bytes as one access.
template <int N>
__device__ __forceinline__ void StoreFp8(uint8_t* to, const float (&x)[N]) {
  if constexpr (N == 1) {
    *to = OneFp8(x[0]);
  } else {
    Vec<uint32_t, N / 4> words;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      words.values[i] = FourFp8({x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]});
    }
    *reinterpret_cast<Vec<uint32_t, N / 4>*>(to) = words;
  }
}

// One access where `wide` (all threads agree), else one a value.
template <typename T, int N>
__device__ __forceinline__ void StoreScaled(uint8_t* to, const Packed<T, N>& x, float factor,
                                            bool wide) {
  float scaled[N];
#pragma unroll
  for (int i = 0; i < N; ++i) scaled[i] = __fmul_rn(x[i], factor);
  if (wide) {
    StoreFp8(to, scaled);
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = OneFp8(scaled[i]);
}

template <typename T, int N>
__device__ __forceinline__ float LargestOf(float largest, const Packed<T, N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) largest = fmaxf(largest, fabsf(x[i]));
  return largest;
}

// The largest of the kLanes threads of a row, none of them negative; as RowSum else.
template <int kLanes>
__device__ __forceinline__ float RowLargest(float x) {
#pragma unroll
  for (int offset = (kLanes < kWarp ? kLanes : kWarp) / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, offset));
  }
  if constexpr (kLanes > kWarp) {
    __shared__ float shared[kLanes / kWarp];
    if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kLanes / kWarp; ++warp) x = fmaxf(x, shared[warp]);
  }
  return x;
}

__device__ __forceinline__ float ScaleOf(float largest, const Fp8Scaling& scaling) {
  return largest > 0.0f ? fmaxf(__fmul_rn(largest, scaling.of_largest), scaling.smallest) : 1.0f;
}

// Writes row `row` in FP8, with its scale. The row's threads hold it, zeros in what is beyond
// `width`; or, where a Config holds nothing, each reads again at `from` what is its own: written by
// itself, if by this kernel. Where a block has several rows, `width` is 0 for one that is not
// there. One call a kernel.
template <typename Config, typename T>
__device__ __forceinline__ void WriteFp8Row(const Fp8Output& out, int64_t row, int width,
                                            Packed<T, Config::kVector> (&held)[Config::kHeld],
                                            const T* from, bool wide) {
  constexpr int N = Config::kVector;
  constexpr int kStep = Config::kLanes * N;
  const int first = static_cast<int>(threadIdx.x) % Config::kLanes * N;
  uint8_t* to = static_cast<uint8_t*>(out.rows.data) + row * out.rows.stride + first;
  float largest = 0.0f;
  if constexpr (Config::kVectors > 0) {
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) largest = LargestOf(largest, held[v]);
    KeepPacked(held);
  } else {
#pragma unroll 4
    for (int c = first; c < width; c += kStep) {
      largest = LargestOf(largest, LoadPacked<T, N>(from + c, wide));
    }
  }
  const float scale = ScaleOf(RowLargest<Config::kLanes>(largest), out.scaling);
  if (first == 0 && (Config::kRows == 1 || width > 0)) out.scale[row] = scale;
  const float inverse = __frcp_rn(scale);
  if constexpr (Config::kVectors > 0) {
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      if (first + v * kStep < width) StoreScaled(to + v * kStep, held[v], inverse, wide);
    }
  } else {
#pragma unroll 4
    for (int c = first; c < width; c += kStep, to += kStep) {
      StoreScaled(to, LoadPacked<T, N>(from + c, wide), inverse, wide);
    }
  }
}

// ---- host side ----

// Whether vectors of N elements are aligned in every row, or there are none.
template <int N>
inline bool Fp8IsWide(const MutableRows& rows) {
  return IsAligned<Vec<uint8_t, N>>(rows.data) && rows.stride % N == 0;
}

}  // namespace sft::engine::cuda
