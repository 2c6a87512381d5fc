#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/engine/optim/adamw.h"

// What the class AdamW, its CPU loops and its ATen form share.

namespace sft::engine {

// States of one parameter. m and v are fp32, bf16 or 8-bit codes; with codes the absmax tensors
// hold one fp32 for each started block of kOptimizerBlock elements.
struct AdamW::State {
  at::Tensor m, v;
  at::Tensor m_absmax, v_absmax;

  bool coded() const { return m_absmax.defined(); }
};

namespace optim {

// One parameter's step with everything that depends on the step alone already worked out, in fp32
// as torch does.
struct Step {
  at::Tensor weight, grad, copy;
  const at::Tensor *m, *v, *m_absmax, *v_absmax;
  float keep;             // 1 - lr * weight_decay
  float one_minus_beta1;  // weight of the gradient in m
  float beta2;
  float one_minus_beta2;
  float step_size;   // lr / (1 - beta1^t)
  float sqrt_bias2;  // sqrt(1 - beta2^t)
  float epsilon;
  float grad_scale;
  uint64_t key;    // of (seed, step, parameter)
  int64_t offset;  // of the shard's first element in the parameter
};

// Tensors on the CPU.
void StepCpu(const Step& step);

// Tensors on any device, by ATen's operations; same rounding, random bits included, but for the
// device's own arithmetic.
void StepAten(const Step& step);

// Random bits of element e: HashHigh of its block of 2^16 elements, then two rounds of a 32-bit
// mix. The lower and upper half of the first word round m and v, the lower half of the second the
// weight.
inline constexpr uint32_t kMix1 = 0x7feb352dU;
inline constexpr uint32_t kMix2 = 0x846ca68bU;
inline constexpr uint32_t kWeyl = 0x9e3779b9U;

inline uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

inline uint64_t HashHigh(uint64_t key, int64_t element) {
  return Mix64(key ^ Mix64(static_cast<uint64_t>(element >> 16) + 0x9e3779b97f4a7c15ULL));
}

inline uint32_t Mix32(uint32_t x) {
  x ^= x >> 16;
  x *= kMix1;
  x ^= x >> 15;
  x *= kMix2;
  return x ^ x >> 16;
}

}  // namespace optim
}  // namespace sft::engine
