#include "worker/engine/nn/mlp.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

void GatedMlp::Forward(Tensor& y, const Tensor& x, const Tensor& residual, const Pass& pass,
                       Saved& saved, ops::Fp8Rows x_fp8) const {
  RestoreGateUp(x, pass, saved, std::move(x_fp8));
  ops::Fp8Rows fp8 = down.EmptyFp8Input(saved.gate_up, pass);
  const Tensor activated = Activate(saved.gate_up, fp8);
  saved.down_xa = down.Forward(y, activated, pass, residual, std::move(fp8));
  if (!MakesProductAgain(saved.gate_up, pass)) {
    saved.activated = activated;
  } else {
    saved.down_xa = ApartFrom(activated, saved.down_xa);
  }
}

void GatedMlp::Restore(const Tensor& x, const Pass& pass, Saved& saved, ops::Fp8Rows x_fp8) const {
  RestoreGateUp(x, pass, saved, std::move(x_fp8));
  if (saved.activated.defined() || MakesProductAgain(saved.gate_up, pass)) return;
  saved.activated = Activate(saved.gate_up, {});
}

void GatedMlp::RestoreGateUp(const Tensor& x, const Pass& pass, Saved& saved,
                             ops::Fp8Rows x_fp8) const {
  if (!restores_gate_up(saved)) return;
  // Spare columns already: the backward turns these rows into their own gradient.
  saved.gate_up = EmptyRows(x.size(0), gate_up.outputs(), gate_up.spare(), x);
  saved.gate_up_xa = gate_up.Forward(saved.gate_up, x, pass, {}, std::move(x_fp8));
}

Tensor GatedMlp::Activate(const Tensor& gate_up, const ops::Fp8Rows& fp8) const {
  Tensor activated = EmptyRows(gate_up.size(0), down.inputs(), down.spare(), gate_up);
  ops::Swiglu(activated, gate_up, fp8);
  return activated;
}

bool GatedMlp::MakesProductAgain(const Tensor& rows, const Pass& pass) const {
  const int64_t rank = gate_up.common_rank();
  // Gate and up may also be one linear, with one adapter for both.
  return rank > 0 && gate_up.members() == 2 && down.members() == 1 && down.common_rank() == rank &&
         !pass.drops() && ops::HasSwigluFactors(rows, rank);
}

void GatedMlp::Backward(const Tensor& dy, const Tensor& x, const Pass& pass, Saved& saved,
                        UnitGradients& gradients, Tensor* dx, ops::Fp8Rows dy_fp8) const {
  if (MakesProductAgain(saved.gate_up, pass)) {
    BackwardInOnePass(dy, x, pass, saved, gradients, dx, std::move(dy_fp8));
    return;
  }
  const bool go_on = dx != nullptr || gate_up.trained(gradients);
  Tensor dactivated;
  if (go_on) dactivated = at::empty({dy.size(0), down.inputs()}, dy.options());
  down.Backward(dy, saved.activated, saved.down_xa, pass, gradients, go_on ? &dactivated : nullptr,
                std::move(dy_fp8));
  saved.activated = saved.down_xa = Tensor();
  if (!go_on) return;
  Tensor dgate_up = std::exchange(saved.gate_up, Tensor());
  ops::SwigluBackward(dgate_up, dactivated, dgate_up);
  dactivated = Tensor();
  gate_up.Backward(dgate_up, x, std::exchange(saved.gate_up_xa, Tensor()), pass, gradients, dx);
}

// Adapters are trained together, and never beside the weights that they adapt.
void GatedMlp::BackwardInOnePass(const Tensor& dy, const Tensor& x, const Pass& pass, Saved& saved,
                                 UnitGradients& gradients, Tensor* dx, ops::Fp8Rows dy_fp8) const {
  const Tensor dxa_down = down.AdapterGradient(dy, pass);
  down.AddSecondGradients(dy, saved.down_xa, pass, gradients);
  Tensor dactivated = at::empty({dy.size(0), down.inputs()}, dy.options());
  down.InputGradient(dy, dxa_down, pass, dactivated, std::move(dy_fp8));
  Tensor dgate_up = std::exchange(saved.gate_up, Tensor());
  Tensor dxa = gate_up.Beside(dgate_up, pass);
  ops::SwigluFactorsBackward(dgate_up, dxa, dactivated,
                             {.xa = std::exchange(saved.gate_up_xa, Tensor()),
                              .b_gate = gate_up.SecondFactor(0, pass),
                              .b_up = gate_up.SecondFactor(1, pass),
                              .dxa_down = dxa_down,
                              .db_gate = gate_up.SecondGradient(0, gradients),
                              .db_up = gate_up.SecondGradient(1, gradients),
                              .da_down = down.FirstGradient(0, gradients),
                              .scale = pass.lora.scale});
  dactivated = Tensor();
  gate_up.AddFirstGradients(x, dxa, pass, gradients);
  if (dx != nullptr) gate_up.InputGradient(dgate_up, dxa, pass, *dx);
}

}  // namespace sft::engine
