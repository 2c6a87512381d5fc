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

// Elements (x, y, z), dense along x; the other two strides in elements, multiples of 16 bytes.
struct Boxes {
  const void* data = nullptr;  // starts on 16 bytes
  int64_t sizes[3] = {};
  int64_t y_stride = 0, z_stride = 0;
  int box[3] = {};        // what one copy takes: 128 bytes along x for the swizzle
  int element_bytes = 2;  // 2: bf16; 1: bytes
};

// Boxes of 128 bytes of `rows` rows of a matrix [count, width].
inline Boxes RowBoxes(const ConstRows& of, int64_t count, int64_t width, int rows,
                      int element_bytes = 2) {
  return {
      of.data,      {width, count, 1}, of.stride, of.stride * count, {128 / element_bytes, rows, 1},
      element_bytes};
}

// What a copy takes from beyond the sizes is zero.
inline bool Describe(EncodeTiled encode, const Boxes& boxes, CUtensorMap* map) {
  const CUtensorMapDataType type =
      boxes.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(boxes.sizes[0]),
                              static_cast<cuuint64_t>(boxes.sizes[1]),
                              static_cast<cuuint64_t>(boxes.sizes[2])};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(boxes.y_stride * boxes.element_bytes),
                                static_cast<cuuint64_t>(boxes.z_stride * boxes.element_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(boxes.box[0]),
                            static_cast<cuuint32_t>(boxes.box[1]),
                            static_cast<cuuint32_t>(boxes.box[2])};
  const cuuint32_t steps[] = {1, 1, 1};
  return encode(map, type, 3, const_cast<void*>(boxes.data), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace sft::engine::cuda
