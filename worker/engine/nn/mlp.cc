#include "worker/engine/nn/mlp.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

void GatedMlp::Forward(Tensor& y, const Tensor& x, const Tensor& residual, const Pass& pass,
                       Saved& saved) const {
  Restore(x, pass, saved);
  saved.down_xa = down.Forward(y, saved.activated, pass, residual);
}

void GatedMlp::Restore(const Tensor& x, const Pass& pass, Saved& saved) const {
  if (!saved.gate_up.defined()) {
    // Spare columns already: the backward turns these rows into their own gradient.
    saved.gate_up = EmptyRows(x.size(0), gate_up.outputs(), gate_up.spare(), x);
    saved.gate_up_xa = gate_up.Forward(saved.gate_up, x, pass);
  }
  if (!saved.activated.defined()) {
    saved.activated = EmptyRows(x.size(0), down.inputs(), down.spare(), x);
    ops::Swiglu(saved.activated, saved.gate_up);
  }
}

void GatedMlp::Backward(const Tensor& dy, const Tensor& x, const Pass& pass, Saved& saved,
                        UnitGradients& gradients, Tensor* dx) const {
  const bool go_on = dx != nullptr || gate_up.trained(gradients);
  Tensor dactivated;
  if (go_on) dactivated = at::empty({dy.size(0), down.inputs()}, dy.options());
  down.Backward(dy, saved.activated, saved.down_xa, pass, gradients,
                go_on ? &dactivated : nullptr);
  saved.activated = Tensor();
  if (!go_on) return;
  Tensor dgate_up = std::exchange(saved.gate_up, Tensor());
  ops::SwigluBackward(dgate_up, dactivated, dgate_up);
  dactivated = Tensor();
  gate_up.Backward(dgate_up, x, saved.gate_up_xa, pass, gradients, dx);
}

}  // namespace sft::engine
