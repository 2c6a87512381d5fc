#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>

#include "worker/engine/kernels/op_types.h"

// CPU implementations of the engine's operations; contracts are in operations.def.

// Compiles a function for AVX-512, AVX2 and the base instruction set; the loader picks one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SFT_SIMD_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SFT_SIMD_CLONES
#endif

namespace sft::engine::cpu {

#define SFT_OPERATION(Result, Name, ...) Result Name(__VA_ARGS__);
#define SFT_CUDA_OPERATION(Result, Name, ...)
#include "worker/engine/kernels/operations.def"

// AbsmaxQuantize with a given offset: {codes, nested_absmax}.
std::tuple<at::Tensor, at::Tensor> AbsmaxQuantizeAround(const at::Tensor& absmax, float offset);
// Fp8Quantize of rows that `operation` has just made, where they are wanted.
void Fp8QuantizeToo(const ops::Fp8Rows& fp8, const at::Tensor& x, const char* operation);

}  // namespace sft::engine::cpu
