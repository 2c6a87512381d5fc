#pragma once

#include "common/plan/layer_kinds.h"

// A norm's kind as numbers, for kernels on CPU and GPU.

namespace sft::engine {

// The norm of a row is (plus + weight) * x * rstd.
struct NormForm {
  float plus = 0.0f;
  bool rounds_first = true;  // x * rstd is rounded to the activations' type before the product
};

constexpr NormForm FormOf(plan::NormKind kind) {
  return {.plus = kind == plan::NormKind::kRmsOnePlus ? 1.0f : 0.0f,
          .rounds_first = kind == plan::NormKind::kRms};
}

}  // namespace sft::engine
