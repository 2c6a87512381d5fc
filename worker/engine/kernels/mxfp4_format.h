#pragma once

#include <cstdint>

// MXFP4 as published weights have it, shared by the CPU and CUDA kernels: blocks of 32 elements in
// memory order. Two codes share a byte, the first in the low half; a code is E2M1, its highest bit
// the sign. A block's scale is the power of two whose biased exponent its byte is (E8M0): value =
// code * 2^(byte - 127), exact in bf16. A byte of 0 counts as a scale of zero.

namespace sft::engine {

inline constexpr int kMxfp4Block = 32;
// Elements whose bytes are whole in both planes: where they may be cut.
inline constexpr int kMxfp4CutUnit = 16384;

inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace sft::engine
