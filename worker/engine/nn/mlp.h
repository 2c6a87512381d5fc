#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/linear.h"

namespace sft::engine {

// down(silu(gate(x)) * up(x))
struct GatedMlp {
  Linear gate, up, down;

  // What the backward needs; undefined tensors are computed again by Restore.
  struct Saved {
    at::Tensor gate, up;   // [T, I]
    at::Tensor activated;  // [T, I]: silu(gate) * up
    at::Tensor gate_xa, up_xa, down_xa;
  };

  at::Tensor Forward(const at::Tensor& x, const Pass& pass, Saved& saved) const;
  // Computes what is missing in `saved`, but for the output.
  void Restore(const at::Tensor& x, const Pass& pass, Saved& saved) const;
  // Adds the parameters' gradients; dx only where not null.
  void Backward(const at::Tensor& dy, const at::Tensor& x, const Pass& pass, const Saved& saved,
                UnitGradients& gradients, at::Tensor* dx) const;
};

}  // namespace sft::engine
