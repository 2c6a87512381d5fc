#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// Makes a tensor's device current and gives its current stream for launches.
class LaunchScope {
 public:
  explicit LaunchScope(const at::Tensor& tensor)
      : guard_(tensor.device()), stream_(c10::cuda::getCurrentCUDAStream()) {}
  cudaStream_t stream() const { return stream_.stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
  c10::cuda::CUDAStream stream_;
};

// Throws c10::Error naming the operation when the type is neither fp32 nor bf16.
inline ElementType TypeOf(const at::Tensor& tensor, const char* operation) {
  if (tensor.scalar_type() == at::kFloat) return ElementType::kFloat32;
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, operation, ": ", tensor.scalar_type(),
              " is neither fp32 nor bf16");
  return ElementType::kBFloat16;
}

}  // namespace sft::engine::cuda
