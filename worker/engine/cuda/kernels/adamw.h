// Launcher of the AdamW step of many tensors; see launch.h for what all launchers keep to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// One tensor of AdamWStep (worker/engine/kernels/ops.h).
struct AdamWTensor {
  void* weight = nullptr;
  const void* grad = nullptr;
  void* copy = nullptr;  // of the other type than weight's, or null
  void* m = nullptr;
  void* v = nullptr;
  float* m_absmax = nullptr;  // null unless m and v are codes
  float* v_absmax = nullptr;
  uint64_t key = 0;
  int64_t offset = 0;
  int64_t elements = 0;  // more than none
};

enum class AdamWState { kFloat32, kBFloat16, kCodes };
// Element types of the tensors of one launch.
struct AdamWTypes {
  ElementType weight;
  ElementType grad;
  AdamWState state;
};

// The members of ops::AdamWFactors in its order.
struct AdamWScalars {
  float keep;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;
  float sqrt_bias2;
  float epsilon;
  float grad_scale;
};

// The most tensors of one launch: their descriptions fit into 4 KiB of a kernel's arguments.
inline constexpr int kAdamWTensors = 40;

// `maps`: fp32 [2, 2, 256] of ops::AdamWStep; null unless the states are codes.
cudaError_t LaunchAdamW(AdamWTypes types, const AdamWTensor* tensors, int count,
                        const AdamWScalars& scalars, const float* maps, cudaStream_t stream);

}  // namespace sft::engine::cuda
