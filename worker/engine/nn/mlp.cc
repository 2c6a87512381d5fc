#include "worker/engine/nn/mlp.h"

#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

Tensor GatedMlp::Forward(const Tensor& x, const Pass& pass, Saved& saved) const {
  Restore(x, pass, saved);
  return down.Forward(saved.activated, pass, saved.down_xa);
}

void GatedMlp::Restore(const Tensor& x, const Pass& pass, Saved& saved) const {
  if (!saved.gate.defined()) {
    saved.gate = gate.Forward(x, pass, saved.gate_xa);
    saved.up = up.Forward(x, pass, saved.up_xa);
  }
  if (!saved.activated.defined()) saved.activated = ops::Swiglu(saved.gate, saved.up);
}

void GatedMlp::Backward(const Tensor& dy, const Tensor& x, const Pass& pass, const Saved& saved,
                        UnitGradients& gradients, Tensor* dx) const {
  const bool go_on = dx != nullptr || gate.trained(gradients) || up.trained(gradients);
  Tensor dactivated;
  down.Backward(dy, saved.activated, saved.down_xa, pass, gradients,
                go_on ? &dactivated : nullptr);
  if (!go_on) return;
  auto [dgate, dup] = ops::SwigluBackward(dactivated, saved.gate, saved.up);
  gate.Backward(dgate, x, saved.gate_xa, pass, gradients, dx);
  up.Backward(dup, x, saved.up_xa, pass, gradients, dx);
}

}  // namespace sft::engine
