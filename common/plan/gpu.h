#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace sft::plan {

// Sustained rates of one type of GPU in a training step (a Hopper GPU is held back by its power,
// not by its peak). Measured with deploy/gpu, or estimated from the published peaks of a type that
// was not; operations and bytes count as in step_time.h.
struct GpuRates {
  std::string_view type;            // as in a job file: "H100"
  std::string_view name;            // part of the driver's name of such a GPU
  double gemm = 0;                  // bf16 products, operations per second
  double gemm_fp8 = 0;              // FP8 products; 0: not supported
  double attention_forward = 0;     // counts causal pairs only; long documents
  double attention_backward = 0;    // with a fixed order of summation
  double copy = 0;                  // bytes read and written
  double bus = 0;                   // bytes per second of a rank in a collective
  bool attention_in_turns = false;  // worker/engine/cuda/ordered_backward.h
  bool cudnn_attention = true;      // or FlashAttention-2 (worker/engine/cuda/cudnn_attention.h)
  bool measured = true;
};

// All types.
std::span<const GpuRates> KnownGpus();

// Finds a GPU by a job's gpu_type or the driver's name; null for a type that is not known.
const GpuRates* FindGpu(std::string_view type_or_name);

// As FindGpu, but for a type that is not known it returns another one: the choice between
// alternatives is much the same on both.
const GpuRates& NearestGpu(std::string_view type_or_name);

}  // namespace sft::plan
