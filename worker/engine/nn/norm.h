#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/pass.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

// A norm over rows [T, H]: RMSNorm of a kind, or LayerNorm. Holds positions of its parameters in
// their unit, no tensors.
struct Norm {
  int weight = -1;  // -1: there is no norm here
  int bias = -1;    // LayerNorm's
  ops::NormOptions options = 0.0;

  explicit operator bool() const { return weight >= 0; }
  bool trained(UnitGradients& gradients) const {
    return gradients.Wants(weight) || gradients.Wants(bias);
  }

  // Writes the norm of x into y, in FP8 too where y has room for it. Returns what the backward
  // needs to know of x's rows, fp32.
  at::Tensor Forward(Activation& y, const at::Tensor& x, const Pass& pass) const;
  // y = residual + the norm of x; of RMSNorm alone.
  at::Tensor ForwardAdd(at::Tensor& y, const at::Tensor& x, const at::Tensor& residual,
                        const Pass& pass) const;
  // dx = the gradient of x, plus `residual` where it is defined, in FP8 too where dx has room for
  // it, and of a LayerNorm with the sums of its columns likewise; an RMSNorm takes that room away.
  // dx may be dy or residual. Adds the parameters' gradients.
  void Backward(Activation& dx, const at::Tensor& dy, const at::Tensor& x,
                const at::Tensor& statistics, const at::Tensor& residual, const Pass& pass,
                UnitGradients& gradients) const;
};

}  // namespace sft::engine
