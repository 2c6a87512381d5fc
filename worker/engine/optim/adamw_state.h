#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/engine/kernels/adamw_format.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/optim/adamw.h"

// Types and constants shared by the class AdamW and its CPU loops.

namespace sft::engine {

class DynamicMap;

// States of one parameter. m and v are fp32, bf16 or 8-bit codes; with codes the absmax tensors
// hold one fp32 for each started block of kOptimizerBlock elements.
struct AdamW::State {
  at::Tensor m, v;
  at::Tensor m_absmax, v_absmax;

  bool coded() const { return m_absmax.defined(); }
};

namespace optim {

// One parameter's step.
struct Step {
  at::Tensor weight, grad, copy;
  const at::Tensor *m, *v, *m_absmax, *v_absmax;
  uint64_t key;    // of (seed, step, parameter)
  int64_t offset;  // of the shard's first element in the parameter
  const ops::AdamWFactors& factors;
};

// Codes `count` floats in blocks of kOptimizerBlock. `floor`: least code of a value above zero.
void EncodeBlocks(const DynamicMap& map, const float* from, uint8_t* codes, float* absmax,
                  uint8_t floor, int64_t count);
// The floor for second moments: one that became zero would divide m by epsilon alone.
inline constexpr uint8_t kSecondMomentFloor = 1;

// Tensors on the CPU.
void StepCpu(const Step& step);

}  // namespace optim
}  // namespace sft::engine
