#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/plan/plan.h"
#include "tests/unit/common/plan/shapes.h"

// Jobs for the tests of this folder. Those with rows run on an H100.

namespace sft::plan {

inline spec::JobSpec Qlora(int64_t rows, int64_t accumulation, int64_t tokens) {
  spec::JobSpec job;
  job.compute.gpu_type = "H100";
  job.training.use_qlora = true;
  job.quantization.bits = 4;
  job.hyperparameters.per_device_batch = static_cast<int>(rows);
  job.hyperparameters.gradient_accumulation_steps = static_cast<int>(accumulation);
  job.hyperparameters.global_batch = static_cast<int>(rows * accumulation);
  job.hyperparameters.sequence_length = static_cast<int>(tokens);
  return job;
}

// The plan divides a rank's rows.
inline spec::JobSpec Auto(int64_t global, int64_t tokens) {
  spec::JobSpec job = Qlora(1, 1, tokens);
  job.hyperparameters.per_device_batch = 0;
  job.hyperparameters.gradient_accumulation_steps = 0;
  job.hyperparameters.global_batch = static_cast<int>(global);
  return job;
}

inline spec::JobSpec Lora(int r, std::vector<std::string> targets) {
  spec::JobSpec job;
  job.lora.r = r;
  job.lora.target_modules = std::move(targets);
  return job;
}

inline spec::JobSpec Full() {
  spec::JobSpec job;
  job.training.mode = spec::Mode::kFullFinetune;
  return job;
}

inline PlanInput Input(const spec::JobSpec& job, double gigabytes,
                       const ModelShape& shape = Qwen3Of8B()) {
  return {shape, job, *FindGpu(job.compute.gpu_type), static_cast<int64_t>(gigabytes * 1e9), 0};
}

}  // namespace sft::plan
