#pragma once

// INT8 as bitsandbytes' vectorwise 8-bit weights have it, without the columns of outliers; shared
// by the CPU and CUDA kernels.
//
// A row of a weight has one fp32 scale = absmax * (1 / 127), absmax = max |w| of the row; an
// element's code is w * (127 / absmax), rounded to the nearest integer, ties to even; it stands for
// code * scale. Each of these operations is rounded to fp32, the last once more to the type of the
// result. A row whose absmax is below kInt8Smallest has code 0 throughout: 127 / absmax might
// overflow. A row with an infinity or a NaN is not finite when de-quantised, as its scale is not.

namespace sft::engine {

inline constexpr float kInt8Largest = 127.0f;
inline constexpr float kInt8Step = 1.0f / kInt8Largest;
inline constexpr float kInt8Smallest = 0x1p-100f;

}  // namespace sft::engine
