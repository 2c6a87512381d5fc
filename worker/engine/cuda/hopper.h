#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>

namespace sft::engine::cuda {

// True on a GPU that has what kernels/hopper.cuh uses: compute capability 9.0. From any thread.
inline bool IsHopper(const at::Tensor& on) {
  const auto* device = at::cuda::getDeviceProperties(on.get_device());
  return device->major == 9 && device->minor == 0;
}

}  // namespace sft::engine::cuda
