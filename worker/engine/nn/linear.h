#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/dropout.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// What multiplies, and drops, the adapter path of every adapted linear.
struct LoraScaling {
  double scale = 0.0;  // alpha / r, or alpha / sqrt(r)
  double dropout = 0.0;
};

// What a layer sees of the unit being run.
struct Pass {
  const UnitWeights& weights;
  LoraScaling lora;
  // Null: no dropout (validation, generation).
  const DropoutKey* dropout = nullptr;
};

// Where a layer's backward puts the gradients of its unit.
class UnitGradients {
 public:
  UnitGradients(GradientSink& sink, int unit) : sink_(sink), unit_(unit) {}

  // Undefined for a frozen parameter and for param < 0.
  at::Tensor Buffer(int param) { return param < 0 ? at::Tensor() : sink_.Buffer(unit_, param); }
  bool Wants(int param) { return Buffer(param).defined(); }
  // No-op for a frozen parameter.
  void Add(int param, const at::Tensor& gradient);

 private:
  GradientSink& sink_;
  int unit_;
};

// gradient += scale * a^T b with a [T, m], b [T, n]; gradient fp32 [m, n].
void AddOuterProduct(at::Tensor& gradient, const at::Tensor& a, const at::Tensor& b,
                     double scale = 1.0);

// y = x W^T (+ bias) (+ scale * dropout(x) A^T B^T), with the positions of its parameters in the
// unit; -1: has none. Frozen weights get no gradient product.
struct Linear {
  int weight = -1;
  int bias = -1;
  int lora_a = -1;  // [r, in]
  int lora_b = -1;  // [out, r]
  uint64_t module = 0;  // identifies it for dropout

  bool adapted() const { return lora_a >= 0; }

  // x [T, in]. `xa` receives dropout(x) A^T [T, r] for the backward, where adapted.
  at::Tensor Forward(const at::Tensor& x, const Pass& pass, at::Tensor& xa) const;

  // Adds the parameters' gradients, and to `dx` that of x where dx is not null: an undefined *dx is
  // set, a defined one is added to.
  void Backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& xa, const Pass& pass,
                UnitGradients& gradients, at::Tensor* dx) const;

  bool trained(UnitGradients& gradients) const;
};

}  // namespace sft::engine
