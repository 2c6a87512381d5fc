#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"

// AdamW (Loshchilov and Hutter 2019) with torch.optim.AdamW's order of operations:
//
//   w -= lr * weight_decay * w
//   m  = beta1 * m + (1 - beta1) * g
//   v  = beta2 * v + (1 - beta2) * g * g
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//
// Arithmetic is fp32 whatever the types of weight, gradient and state. As in torch, every parameter
// given is decayed, biases and norms too: leave them out of a weight_decay != 0 by a second AdamW.
//
//   kAdamW      m and v in fp32
//   kAdamWBf16  m and v in bf16, rounded stochastically (nearest would freeze v, whose change per
//               step, 1 - beta2 of it, is below half a bf16 ulp)
//   kAdamW8bit  m and v in 8 bits: blocks of 256 elements scaled by their largest magnitude, codes
//               of the dynamic map (signed for m, unsigned for v; Dettmers et al. 2022); tensors
//               below 4,096 elements keep fp32 states
//
// bf16 weights (master_weights = bf16) are rounded stochastically under each kind. The random bits
// are a function of (seed, step, parameter id, element of the whole parameter): runs repeat bit for
// bit, on a CPU and with CUDA alike, whatever the threads, and however a parameter is cut into
// shards.

namespace sft::engine {

namespace optim {
struct Step;
}

// A parameter, or this rank's shard of one, or a flat buffer of several.
struct OptimizerParam {
  std::string name;
  // Master weight, updated in place: contiguous, fp32 or bf16, any shape; may be empty.
  at::Tensor weight;
  // Optional: as many elements in another type, overwritten with the rounded weight in each step.
  at::Tensor copy;
  // Place of the whole parameter in the model, equal on all ranks.
  int64_t id = 0;
  // First element of this shard within the whole parameter.
  int64_t offset = 0;
};

// Hyperparameters, equal on all ranks.
struct AdamWOptions {
  spec::Optimizer kind = spec::Optimizer::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  uint64_t seed = 0;
  // Instead of the CPU's loops and CUDA's operation: what tests compare them with.
  void (*step)(const optim::Step&) = nullptr;
};

// The options of a job.
AdamWOptions AdamWOptionsOf(const spec::JobSpec& spec);

// The states of consecutive elements of a parameter as AdamW keeps them: fp32, bf16, or codes with
// an absmax for each started block of 256 elements from `first` on.
struct AdamWMoments {
  int64_t first = 0;              // element of the whole parameter
  at::Tensor m, v;                // 1-D
  at::Tensor m_absmax, v_absmax;  // undefined but for codes

  int64_t count() const { return m.numel(); }
};

// Owns the states, shares the tensors. Thread-compatible.
class AdamW {
 public:
  // Allocates zeroed states on the devices of the weights. Throws InternalError for a weight that
  // is not contiguous or has another type.
  AdamW(std::vector<OptimizerParam> params, const AdamWOptions& options);
  ~AdamW();
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // One step with grads[i] * grad_scale as the gradient of params()[i]; grads hold fp32 or bf16,
  // contiguous, and are left as they are. An undefined gradient skips its parameter, as torch does.
  void Step(std::span<const at::Tensor> grads, double lr, double grad_scale = 1.0);

  // A step parameter by parameter, in any order: the same bits. StepParam takes a parameter at most
  // once a step and writes `copy`, as OptimizerParam::copy, where it is defined.
  void BeginStep(double lr, double grad_scale = 1.0);
  void StepParam(size_t index, const at::Tensor& grad, const at::Tensor& copy);

  const std::vector<OptimizerParam>& params() const { return params_; }
  // Steps taken.
  int64_t steps() const { return steps_; }

  // The states of params()[index]; they share the storage that steps change.
  AdamWMoments Moments(size_t index) const;
  // Overwrites them with `saved` ones, in host memory and ascending, which may be cut otherwise and
  // of another kind but hold every element. The bits are kept where the kind is the same; a block
  // of 8-bit codes moreover has to lie in one saved block. Other blocks are decoded and coded anew:
  // an element changes by at most half a step of the map times the largest of its new block.
  // Throws InternalError where an element is missing.
  void Restore(size_t index, std::span<const AdamWMoments> saved);
  void SetSteps(int64_t steps) { steps_ = steps; }
  // Bytes of the states held here.
  int64_t StateBytes() const;

 private:
  struct State;
  struct Batches;
  // Steps parameter `index`; does nothing without a gradient or for an empty weight.
  void StepOne(size_t index, const at::Tensor& grad, const at::Tensor& copy, Batches* batches);

  // The dynamic maps as ops::AdamWStep takes them; made at construction, where states are codes.
  at::Tensor maps_;
  std::vector<OptimizerParam> params_;
  AdamWOptions options_;
  std::vector<State> states_;
  int64_t steps_ = 0;
  double lr_ = 0, grad_scale_ = 1;  // of the step under way
};

// Bytes of state for one tensor of `elements`, as AdamW allocates them.
int64_t AdamWStateBytes(spec::Optimizer kind, int64_t elements);

}  // namespace sft::engine
