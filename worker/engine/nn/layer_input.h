#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/projection.h"

namespace sft::engine {

// What a layer does with an input of its own, beside the residual stream: projection(act(gate(x)) *
// input). T tokens, H hidden size, P size of the input. Rows have the spare columns that their
// projection asks for (projection.h).
struct LayerInput {
  Projection gate, projection;
  int64_t size = 0;   // P; 0: the layer has no input of its own
  int64_t first = 0;  // column of its input among those of all layers
  plan::ActivationKind kind = plan::ActivationKind::kGeluTanh;

  explicit operator bool() const { return size > 0; }

  struct Saved {
    at::Tensor gated;  // [T, 2 P]: the gate's product, and the input
    at::Tensor product;
    at::Tensor gate_xa, projection_xa;
  };

  // Writes y [T, H] = the layer of x [T, H], plus `residual` where it is defined. `inputs` [T, L
  // P]: of all layers.
  void Forward(at::Tensor& y, Activation x, const at::Tensor& inputs, const at::Tensor& residual,
               const Pass& pass, Saved& saved) const;
  // Adds the parameters' gradients, writes that of x [T, H] into dx and, where `dinputs` [T, L P]
  // is defined, that of the input into its columns. Consumes `saved`.
  void Backward(Activation dy, const at::Tensor& x, at::Tensor dinputs, const Pass& pass,
                Saved& saved, UnitGradients& gradients, at::Tensor& dx) const;
};

}  // namespace sft::engine
