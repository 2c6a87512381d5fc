#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "worker/engine/cuda/ops.h"

namespace sft::engine::cuda {

using at::Tensor;

// The allocator cuts a tensor from the lower end of the smallest free piece that holds it. A tensor
// of all but the upper `bytes` of the largest piece leaves just those.
Tensor EmptyAtTheEnd(const Tensor& like, int64_t bytes) {
  constexpr int64_t kPieces = 512;               // the allocator's sizes are multiples of it
  constexpr int64_t kLeast = int64_t{32} << 20;  // below it there is nothing to keep together
  const auto options = like.options().dtype(at::kByte);
  size_t largest = 1;  // 0 would ask the driver first
  c10::cuda::CUDACachingAllocator::cacheInfo(like.get_device(), &largest);
  const int64_t below = static_cast<int64_t>(largest) - (bytes + kPieces - 1) / kPieces * kPieces;
  const Tensor filler = below >= kLeast ? at::empty({below}, options) : Tensor();
  return at::empty({bytes}, options);
}

Tensor EmptyPinned(const Tensor& like, int64_t bytes) {
  const c10::cuda::CUDAGuard guard(like.device());
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)),
                                          cudaHostAllocDefault);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // said here
    TORCH_CHECK(false, "EmptyPinned: the driver cannot lock ", bytes,
                " bytes of host memory: ", cudaGetErrorString(error));
  }
  const auto free = [](void* pointer) { static_cast<void>(cudaFreeHost(pointer)); };
  return at::from_blob(memory, {bytes}, free, at::TensorOptions(at::kByte));
}

}  // namespace sft::engine::cuda
