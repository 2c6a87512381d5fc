#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "worker/engine/cuda/plugin.h"

namespace sft::rank {

// Device of this process. `cuda` is null on a CPU.
struct Device {
  at::Device torch = at::kCPU;
  const engine::CudaPlugin* cuda = nullptr;

  // "cpu", "cuda:0 NVIDIA H100 80GB HBM3"
  std::string Name() const;
  // Dense bf16 operations a second that the maker states; 0 for a GPU not in the list and for a
  // CPU.
  double PeakFlops() const;
};

// Opens "cpu" or GPU `index` of those this process sees. The CUDA plugin is loaded before LibTorch
// is asked about CUDA for the first time: it remembers that answer. Throws InfrastructureError.
Device OpenDevice(const std::string& kind, int index);
// The same for "cpu" or "cuda:N", as ParseArguments has checked it.
Device OpenDevice(const std::string& name);

}  // namespace sft::rank
