#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace sft::plan {

// What one type of GPU does in a second, sustained in a training step (a Hopper GPU is held back by
// its power, not by its peak). Measured with deploy/gpu; operations and bytes count as in
// step_time.h.
struct GpuRates {
  std::string_view type;          // as a job names it: "H100"
  std::string_view name;          // part of the driver's name of such a GPU
  double gemm = 0;                // bf16 products, operations a second
  double gemm_fp8 = 0;            // products in FP8; 0: it has none
  double attention_forward = 0;   // causal pairs alone counted, long documents
  double attention_backward = 0;  // in a fixed order of summation
  double copy = 0;                // bytes read and written
  double bus = 0;                 // bytes a second of a rank in a collective
};

// All that were measured.
std::span<const GpuRates> KnownGpus();

// By a job's gpu_type or the driver's name; null for a type that was never measured.
const GpuRates* FindGpu(std::string_view type_or_name);

// As FindGpu; of a GPU that was never measured another's: what is fast beside what is much alike.
const GpuRates& NearestGpu(std::string_view type_or_name);

}  // namespace sft::plan
