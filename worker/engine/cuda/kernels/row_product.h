// Launcher of products of few rows with a weight that is read once; see launch.h for what all
// launchers keep to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// Most rows of one launch.
inline constexpr int64_t kMostProductRows = 64;

// out [rows, outputs] = alpha * a [rows, inputs] weight^T (+ addend), in bf16.
struct RowProductShape {
  int64_t rows = 0, outputs = 0, inputs = 0;
  float alpha = 1.0f;
};

// Whether there is a kernel for weights of so many inputs: as bf16 rows, or as NF4, dense.
bool HasRowProduct(int64_t inputs);
bool HasNf4RowProduct(int64_t inputs);

// A row's bits do not depend on the rows beside it nor on how many they are. `addend.data` null:
// there is none; it may be out. Rows of a and of the weight are aligned to 16 bytes. The weight may
// not be what the kernel before it writes: it is loaded before that one has ended.
cudaError_t LaunchRowProduct(const RowProductShape& shape, ConstRows a, ConstRows weight,
                             ConstRows addend, MutableRows out, cudaStream_t stream);
// `codes` [outputs, inputs / 2], `absmax` [outputs, inputs / 64] (kernels/nf4_tables.h). Each
// weight is rounded to bf16, as LaunchNf4Dequantize does.
cudaError_t LaunchNf4RowProduct(const RowProductShape& shape, ConstRows a, const uint8_t* codes,
                                const float* absmax, ConstRows addend, MutableRows out,
                                cudaStream_t stream);

}  // namespace sft::engine::cuda
