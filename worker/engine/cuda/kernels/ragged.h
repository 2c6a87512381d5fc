// Launcher of the kernel behind cuDNN's packed layout; see launch.h for what all launchers keep to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sft::engine::cuda {

// Documents of a packed micro-batch as one or more calls of cuDNN see them.
struct RaggedShape {
  static constexpr int kMaxOperands = 8;
  int32_t documents = 0;  // in cu_seqlens
  int32_t planned = 0;    // >= documents, a multiple of per_call; the surplus is empty documents
  int32_t per_call = 0;
  int32_t operands = 0;
  int64_t token_strides[kMaxOperands] = {};  // of each operand, in elements
  // Entries between the arrays of two operands, and of two calls' lengths: each starts on 16 bytes.
  __host__ __device__ int64_t OffsetPitch() const { return (per_call + 2) / 2 * 2; }
  __host__ __device__ int64_t LengthPitch() const { return (per_call + 3) / 4 * 4; }
  __host__ __device__ int64_t Calls() const { return planned / per_call; }
};

// Per call and operand, where each document starts in elements, and at the end where the last one
// ends: offsets [Calls, operands, OffsetPitch]. Per call each document's tokens: lengths [Calls,
// LengthPitch]. cu_seqlens has documents + 1 entries.
cudaError_t LaunchRaggedOffsets(const RaggedShape& shape, const int32_t* cu_seqlens,
                                int64_t* offsets, int32_t* lengths, cudaStream_t stream);

}  // namespace sft::engine::cuda
