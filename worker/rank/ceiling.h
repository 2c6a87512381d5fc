#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "worker/engine/train/flops.h"
#include "worker/rank/device.h"

namespace sft::rank {

// Shapes of a job's micro-batch, with documents of one length.
struct CeilingShapes {
  plan::ModelShape model;
  spec::Matmul matmul = spec::Matmul::kBf16;
  bool weight_gradients = false;  // products of trained weights are among those timed
  bool deterministic = true;
  int64_t rows = 1;
  int64_t row_tokens = 0;
};

// The rates that the GPU reaches with a block's products and attention alone, one after the other
// for a quarter of a second each: the job's speed of light. Of more than 16,384 tokens for products
// and 65,536 for attention so many are timed. Kept in `cache_dir` by type of GPU and
// shapes. What the kernels cannot run has no rate. Leaves no memory behind.
engine::Ceiling MeasureCeiling(const CeilingShapes& shapes, const Device& device, Clock& clock,
                               const std::string& cache_dir);

}  // namespace sft::rank
