#pragma once

#include <cmath>
#include <cstdint>

#include "worker/engine/kernels/norm_form.h"

// The arithmetic of one row or head, inlined into functions that SFT_SIMD_CLONES compiles. Sums
// have a fixed order, whatever the instruction set and the number of threads.

#define SFT_INLINE __attribute__((always_inline)) inline

namespace sft::engine::cpu {

inline constexpr int kLanes = 16;

// Sum over i of term(i), in a fixed order of kLanes partial sums that the compiler can vectorise.
template <typename Term>
SFT_INLINE float LaneSum(int64_t count, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (; i < count; ++i) lanes[i % kLanes] += term(i);
  float sum = 0.0f;
  for (float lane : lanes) sum += lane;
  return sum;
}

// 1 / sqrt(mean(x^2) + eps)
template <typename T>
SFT_INLINE float RowRstd(const T* x, float eps, int64_t width) {
  const float sum = LaneSum(width, [x](int64_t i) {
    const float value = static_cast<float>(x[i]);
    return value * value;
  });
  return 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
}

// `x`, rounded to T where the norm's kind says so (plan::NormKind).
template <typename T>
SFT_INLINE float RoundedFirst(float x, const NormForm& form) {
  return form.rounds_first ? static_cast<float>(static_cast<T>(x)) : x;
}

// y = the norm of x, of the form given
template <typename T>
SFT_INLINE void NormaliseRow(const T* x, const T* weight, float rstd, const NormForm& form,
                             int64_t width, T* y) {
  for (int64_t i = 0; i < width; ++i) {
    const float normalised = RoundedFirst<T>(static_cast<float>(x[i]) * rstd, form);
    y[i] = static_cast<T>((form.plus + static_cast<float>(weight[i])) * normalised);
  }
}

// The component along x of the gradient of y = (plus + weight) * x * rstd: the backward subtracts
// x times it.
template <typename T, typename Gradient>
SFT_INLINE float AlongRow(const Gradient* dy, const T* x, const T* weight, float rstd, float plus,
                          int64_t width) {
  const float dot = LaneSum(width, [=](int64_t i) {
    return static_cast<float>(dy[i]) * (plus + static_cast<float>(weight[i])) *
           static_cast<float>(x[i]);
  });
  return dot * rstd * rstd / static_cast<float>(width);
}

// Rotates the halves (x[i], x[i + half]) by the angles of cos and sign * sin; y may be x.
template <typename T, typename Rotated>
SFT_INLINE void RotateHead(const T* x, const float* cos, const float* sin, float sign, int64_t half,
                           Rotated* y) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = static_cast<float>(x[i]);
    const float second = static_cast<float>(x[i + half]);
    const float s = sign * sin[i];
    y[i] = static_cast<Rotated>(first * cos[i] - second * s);
    y[i + half] = static_cast<Rotated>(second * cos[i] + first * s);
  }
}

}  // namespace sft::engine::cpu
