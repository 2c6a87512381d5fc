// What the kernels of the causal convolution share. A thread has some neighbouring columns and
// walks down tokens with what the last three added in registers.
#pragma once

#include <type_traits>

#include "worker/engine/cuda/kernels/gates.cuh"
#include "worker/engine/cuda/kernels/linear_attention.h"
#include "worker/engine/cuda/kernels/rows.cuh"

namespace sft::engine::cuda {
namespace short_conv {

inline constexpr int kTaps = 4;
inline constexpr int kThreads = 128;
inline constexpr int kAhead = 4;  // tokens that are loaded at once

// The taps of N columns.
template <int N>
struct Taps {
  template <typename W>
  __device__ __forceinline__ Taps(const W* weight, int64_t column, bool wide) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto taps = LoadPacked<W, kTaps>(weight + (column + i) * kTaps, wide);
#pragma unroll
      for (int m = 0; m < kTaps; ++m) at[m][i] = taps[m];
    }
  }
  float at[kTaps][N];
};

// Values of the last three tokens: [0] of the one before, zero before a document's start.
template <int N>
struct Before {
  float at[kTaps - 1][N] = {};
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int back = 0; back < kTaps - 1; ++back) {
#pragma unroll
      for (int i = 0; i < N; ++i) at[back][i] = 0.0f;
    }
  }
  __device__ __forceinline__ void Push(const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      at[2][i] = at[1][i];
      at[1][i] = at[0][i];
      at[0][i] = x[i];
    }
  }
};

template <typename T, int N>
__device__ __forceinline__ void LoadRow(const T* from, float (&x)[N]) {
  const auto packed = LoadPacked<T, N>(from, true);
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = packed[i];
}

template <int N>
__device__ __forceinline__ float Convolved(const Taps<N>& taps, const Before<N>& before, float x,
                                           int i) {
  float sum = taps.at[0][i] * before.at[2][i];
  sum = __fmaf_rn(taps.at[1][i], before.at[1][i], sum);
  sum = __fmaf_rn(taps.at[2][i], before.at[0][i], sum);
  return __fmaf_rn(taps.at[3][i], x, sum);
}

// Calls launch(columns of a thread, an element of the weight's type).
template <typename T, typename Launch>
void ChooseConv(bool wide, ElementType weight_type, const Launch& launch) {
  const auto with_type = [&](auto columns) {
    if (weight_type == ElementType::kFloat32) {
      launch(columns, float());
    } else {
      launch(columns, __nv_bfloat16());
    }
  };
  if (wide) {
    with_type(std::integral_constant<int, kWide<T>>());
  } else {
    with_type(std::integral_constant<int, 1>());
  }
}

}  // namespace short_conv
}  // namespace sft::engine::cuda
