// Descriptions of matrices in global memory for copies by TMA (hopper.cuh: CopyBox).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function, since nothing links the driver.
inline cudaError_t FindEncoder(EncodeTiled* encode) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) return error;
  if (result != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  *encode = reinterpret_cast<EncodeTiled>(found);
  return cudaSuccess;
}

// bf16 elements (x, y, z), dense along x; the other two strides in elements, multiples of 8.
struct Boxes {
  const void* data = nullptr;  // starts on 16 bytes
  int64_t sizes[3] = {};
  int64_t y_stride = 0, z_stride = 0;
  int box[3] = {};  // what one copy takes: 64 along x for the 128-byte swizzle
};

// Boxes of 64 columns of `rows` rows of a matrix [count, width].
inline Boxes RowBoxes(const ConstRows& of, int64_t count, int64_t width, int rows) {
  return {of.data, {width, count, 1}, of.stride, of.stride * count, {64, rows, 1}};
}

// What a copy takes from beyond the sizes is zero.
inline bool Describe(EncodeTiled encode, const Boxes& boxes, CUtensorMap* map) {
  constexpr int64_t kElement = 2;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(boxes.sizes[0]),
                              static_cast<cuuint64_t>(boxes.sizes[1]),
                              static_cast<cuuint64_t>(boxes.sizes[2])};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(boxes.y_stride * kElement),
                                static_cast<cuuint64_t>(boxes.z_stride * kElement)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(boxes.box[0]),
                            static_cast<cuuint32_t>(boxes.box[1]),
                            static_cast<cuuint32_t>(boxes.box[2])};
  const cuuint32_t steps[] = {1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(boxes.data), sizes,
                strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace sft::engine::cuda
