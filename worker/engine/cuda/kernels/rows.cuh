// How a row is shared out to threads, and the arithmetic of a row's norm and of a head's rotation.
// The order of a row's sum depends on its width alone, never on where it lies: the same row gives
// the same bits in every kernel.
#pragma once

#include <type_traits>

#include "worker/engine/cuda/kernels/vec.cuh"
#include "worker/engine/kernels/norm_form.h"

namespace sft::engine::cuda {

// kLanes neighbouring threads own a row; thread `lane` has the vectors of kVector elements number
// lane, lane + kLanes, ... of it: kVectors of them in registers, or any number where that is 0.
template <int kVectorSize, int kLaneCount, int kVectorCount>
struct RowConfig {
  static constexpr int kVector = kVectorSize;
  static constexpr int kLanes = kLaneCount;
  static constexpr int kVectors = kVectorCount;
  static constexpr int kThreads = kLanes <= kWarp ? 256 : kLanes;
  static constexpr int kRows = kThreads / kLanes;            // of a block
  static constexpr int kHeld = kVectors > 0 ? kVectors : 1;  // an array of vectors has one at least
};

inline constexpr int64_t kMaxHeadSize = 512;

// Calls `launch` with the RowConfig of a head: no more than a warp, all of it in registers.
template <typename T, typename Launch>
void ChooseHeadConfig(int64_t size, const Launch& launch) {
  constexpr int kN = kWide<T>;
  if (size % kN == 0) {
    const int64_t vectors = size / kN;
    if (vectors <= 8) return launch(RowConfig<kN, 8, 1>());
    if (vectors <= 16) return launch(RowConfig<kN, 16, 1>());
    if (vectors <= 32) return launch(RowConfig<kN, 32, 1>());
    return launch(RowConfig<kN, 32, kMaxHeadSize / (32 * kN)>());
  }
  if (size <= 8) return launch(RowConfig<1, 8, 1>());
  if (size <= 16) return launch(RowConfig<1, 16, 1>());
  return launch(RowConfig<1, 32, kMaxHeadSize / 32>());
}

// Calls `launch` with the RowConfig of a row of any width; that of a head where it may be one.
template <typename T, typename Launch>
void ChooseRowConfig(int64_t width, const Launch& launch) {
  constexpr int kN = kWide<T>;
  if (width <= kMaxHeadSize) return ChooseHeadConfig<T>(width, launch);
  if (width % kN != 0) return launch(RowConfig<1, 512, 0>());
  const int64_t vectors = width / kN;
  if (vectors <= 64) return launch(RowConfig<kN, 32, 2>());
  if (vectors <= 128) return launch(RowConfig<kN, 32, 4>());
  if (vectors <= 256) return launch(RowConfig<kN, 256, 1>());
  if (vectors <= 512) return launch(RowConfig<kN, 256, 2>());
  if (vectors <= 768) return launch(RowConfig<kN, 256, 3>());
  if (vectors <= 1024) return launch(RowConfig<kN, 256, 4>());
  if (vectors <= 2048) return launch(RowConfig<kN, 512, 4>());
  return launch(RowConfig<kN, 512, 0>());
}

// Calls `launch` with the RowConfig of a row that one block has, in registers but where it is very
// wide; `wide`: all rows allow 16-byte accesses and none cuts one off.
template <typename T, typename Launch>
void ChooseBlockConfig(int64_t width, bool wide, const Launch& launch) {
  constexpr int kN = kWide<T>;
  if (!wide) return launch(RowConfig<1, 512, 0>());
  const int64_t vectors = width / kN;
  if (vectors <= 128) return launch(RowConfig<kN, 128, 1>());
  if (vectors <= 512) return launch(RowConfig<kN, 128, 4>());
  if (vectors <= 1024) return launch(RowConfig<kN, 128, 8>());
  if (vectors <= 2048) return launch(RowConfig<kN, 256, 8>());
  if (vectors <= 4096) return launch(RowConfig<kN, 512, 8>());
  if (vectors <= 8192) return launch(RowConfig<kN, 1024, 8>());
  return launch(RowConfig<kN, 512, 0>());
}

// Sum over the kLanes threads of a row; all get it. No thread of a warp, or of a block where a row
// has more than a warp, may miss the call; one call a kernel.
template <int kLanes>
__device__ __forceinline__ float RowSum(float x) {
  if constexpr (kLanes <= kWarp) {
    return GroupSum<kLanes>(x);
  } else {
    __shared__ float shared[kLanes / kWarp];
    return BlockSum<kLanes>(x, shared);
  }
}

// Keeps values in registers as they were loaded: without it the compiler may hold on to the floats
// that it made of bf16 before a sum, in twice the registers, instead of making them once more.
template <typename T, int N, int kCount>
__device__ __forceinline__ void KeepPacked(Packed<T, N> (&vectors)[kCount]) {
  if constexpr (requires { vectors[0].words; }) {
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) asm volatile("" : "+r"(vectors[v].words[i]));
    }
  }
}

template <typename T, int N>
__device__ __forceinline__ float AddSquares(float sum, const Packed<T, N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum = __fmaf_rn(x[i], x[i], sum);
  return sum;
}

__device__ __forceinline__ float Rstd(float sum_of_squares, int64_t width, float eps) {
  return rsqrtf(__fadd_rn(__fdiv_rn(sum_of_squares, static_cast<float>(width)), eps));
}

// x * rstd, rounded to T where the norm says so.
template <typename T>
__device__ __forceinline__ float RoundedFirst(float x, float rstd, const NormForm& form) {
  const float normalised = __fmul_rn(x, rstd);
  return form.rounds_first ? Rounded<T>(normalised) : normalised;
}

// The norm of x, not yet rounded to T.
template <typename T>
__device__ __forceinline__ float Normalised(float x, float weight, float rstd,
                                            const NormForm& form) {
  return __fmul_rn(RoundedFirst<T>(x, rstd, form), form.plus + weight);
}

// The two halves of a head after a turn by an angle.
__device__ __forceinline__ float RotatedLow(float low, float high, float cos, float sin) {
  return __fmaf_rn(low, cos, -__fmul_rn(high, sin));
}
__device__ __forceinline__ float RotatedHigh(float low, float high, float cos, float sin) {
  return __fmaf_rn(high, cos, __fmul_rn(low, sin));
}

// sums[c] = sum over the rows of a matrix [rows, width] of floats, in one order.
cudaError_t LaunchSumRows(const float* matrix, int64_t rows, int64_t width, float* sums,
                          cudaStream_t stream);

}  // namespace sft::engine::cuda
