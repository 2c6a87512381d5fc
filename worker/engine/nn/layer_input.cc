#include "worker/engine/nn/layer_input.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

void LayerInput::Forward(Tensor& y, Activation x, const Tensor& inputs, const Tensor& residual,
                         const Pass& pass, Saved& saved) const {
  saved.gated = at::empty({x.rows.size(0), 2 * size}, x.rows.options());
  Tensor gates = saved.gated.narrow(1, 0, size);
  saved.gated.narrow(1, size, size).copy_(inputs.narrow(1, first, size));
  saved.gate_xa = gate.Forward(gates, std::move(x), pass);
  Activation product = projection.EmptyInput(saved.gated, pass);
  ops::Glu(product.rows, saved.gated, kind, product.fp8);
  saved.product = product.rows;
  saved.projection_xa = projection.Forward(y, std::move(product), pass, residual);
}

void LayerInput::Backward(Activation dy, const Tensor& x, Tensor dinputs, const Pass& pass,
                          Saved& saved, UnitGradients& gradients, Tensor& dx) const {
  Tensor dproduct = at::empty({x.size(0), size}, x.options());
  projection.Backward(std::move(dy), saved.product, saved.projection_xa, pass, gradients,
                      &dproduct);
  saved.product = saved.projection_xa = Tensor();
  Tensor dgated = std::exchange(saved.gated, Tensor());
  ops::GluBackward(dgated, dproduct, dgated, kind);
  if (dinputs.defined()) {
    dinputs.narrow(1, first, size).copy_(dgated.narrow(1, size, size));
  }
  Tensor dgates = gate.EmptyGradientRows(dgated);
  dgates.copy_(dgated.narrow(1, 0, size));
  gate.Backward(dgates, x, std::exchange(saved.gate_xa, Tensor()), pass, gradients, &dx);
}

}  // namespace sft::engine
