// Launchers of INT8 (worker/engine/kernels/int8_format.h); launch.h says what all launchers have in
// common.
#pragma once

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// A weight [rows, columns]; its codes are dense.
struct Int8Shape {
  int64_t rows = 0;
  int64_t columns = 0;
};
// `weight` is dense; one absmax a row.
cudaError_t LaunchInt8Quantize(ElementType type, Int8Shape shape, const void* weight,
                               const float* absmax, int8_t* codes, cudaStream_t stream);
cudaError_t LaunchInt8Dequantize(ElementType type, Int8Shape shape, const int8_t* codes,
                                 const float* scale, MutableRows out, cudaStream_t stream);

}  // namespace sft::engine::cuda
