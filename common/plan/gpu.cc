#include "common/plan/gpu.h"

namespace sft::plan {
namespace {

constexpr GpuRates kGpus[] = {
    {.type = "H200",
     .name = "H200",
     .gemm = 700e12,
     .gemm_fp8 = 1250e12,
     .attention_forward = 610e12,
     .attention_backward = 400e12,
     .copy = 4.26e12,
     .bus = 340e9},
    {.type = "H100",
     .name = "H100 80GB",
     .gemm = 710e12,
     .gemm_fp8 = 1240e12,
     .attention_forward = 600e12,
     .attention_backward = 390e12,
     .copy = 3.01e12,
     .bus = 340e9},
};

}  // namespace

std::span<const GpuRates> KnownGpus() { return kGpus; }

const GpuRates* FindGpu(std::string_view type_or_name) {
  for (const GpuRates& gpu : kGpus) {
    if (type_or_name == gpu.type || type_or_name.find(gpu.name) != std::string_view::npos) {
      return &gpu;
    }
  }
  return nullptr;
}

const GpuRates& NearestGpu(std::string_view type_or_name) {
  const GpuRates* found = FindGpu(type_or_name);
  return found != nullptr ? *found : kGpus[0];
}

}  // namespace sft::plan
