#include "worker/engine/nn/mlp.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

void Mlp::Forward(Tensor& y, Activation x, const Tensor& residual, const Pass& pass,
                  Saved& saved) const {
  RestoreGateUp(std::move(x), pass, saved);
  Activation activated = down.EmptyInput(saved.gate_up, pass);
  Activate(activated, saved.gate_up);
  const Tensor rows = activated.rows;
  saved.down_xa = down.Forward(y, std::move(activated), pass, residual);
  if (!MakesProductAgain(saved.gate_up, pass)) {
    saved.activated = rows;
  } else {
    saved.down_xa = ApartFrom(rows, saved.down_xa);
  }
}

void Mlp::Restore(Activation x, const Pass& pass, Saved& saved) const {
  RestoreGateUp(std::move(x), pass, saved);
  if (saved.activated.defined() || MakesProductAgain(saved.gate_up, pass)) return;
  Activation activated = down.EmptyInputRows(saved.gate_up);
  Activate(activated, saved.gate_up);
  saved.activated = activated.rows;
}

void Mlp::Activate(Activation& out, const Tensor& rows) const {
  if (gated) {
    ops::Glu(out.rows, rows, kind, out.fp8);
  } else {
    ops::Activate(out.rows, rows, kind, out.fp8);
  }
}

void Mlp::RestoreGateUp(Activation x, const Pass& pass, Saved& saved) const {
  if (!restores_gate_up(saved)) return;
  // Spare columns already: the backward turns these rows into their own gradient.
  saved.gate_up = gate_up.EmptyGradientRows(x.rows);
  saved.gate_up_xa = gate_up.Forward(saved.gate_up, std::move(x), pass);
}

bool Mlp::MakesProductAgain(const Tensor& rows, const Pass& pass) const {
  const int64_t rank = gate_up.common_rank();
  // Gate and up may also be one linear, with one adapter for both.
  return rank > 0 && gated && !gate_up.has_gains() && !down.has_gains() && gate_up.members() == 2 &&
         down.members() == 1 && down.common_rank() == rank && !pass.drops() &&
         ops::HasGluFactors(rows, rank);
}

void Mlp::Backward(Activation dy, const Tensor& x, const Pass& pass, Saved& saved,
                   UnitGradients& gradients, Tensor* dx) const {
  if (MakesProductAgain(saved.gate_up, pass)) {
    BackwardInOnePass(std::move(dy), x, pass, saved, gradients, dx);
    return;
  }
  const bool go_on = dx != nullptr || gate_up.trained(gradients);
  Tensor dactivated;
  if (go_on) dactivated = at::empty({dy.rows.size(0), down.inputs()}, dy.rows.options());
  down.Backward(std::move(dy), saved.activated, saved.down_xa, pass, gradients,
                go_on ? &dactivated : nullptr);
  saved.activated = saved.down_xa = Tensor();
  if (!go_on) return;
  Activation dgate_up = std::exchange(saved.gate_up, Tensor());
  if (gated) {
    ops::GluBackward(dgate_up.rows, dactivated, dgate_up.rows, kind);
  } else {
    dgate_up.sums = gate_up.EmptySums(dgate_up.rows);
    ops::ActivateBackward(dgate_up.rows, dactivated, dgate_up.rows, kind, dgate_up.sums);
  }
  dactivated = Tensor();
  gate_up.Backward(std::move(dgate_up), x, std::exchange(saved.gate_up_xa, Tensor()), pass,
                   gradients, dx);
}

// Adapters are trained together, and never beside the weights that they adapt.
void Mlp::BackwardInOnePass(Activation dy, const Tensor& x, const Pass& pass, Saved& saved,
                            UnitGradients& gradients, Tensor* dx) const {
  const Tensor dxa_down = down.AdapterGradient(dy.rows, pass);
  down.AddSecondGradients(dy.rows, saved.down_xa, pass, gradients);
  Tensor dactivated = at::empty({dy.rows.size(0), down.inputs()}, dy.rows.options());
  down.InputGradient(std::move(dy), dxa_down, pass, dactivated);
  Tensor dgate_up = std::exchange(saved.gate_up, Tensor());
  Tensor dxa = gate_up.Beside(dgate_up, pass);
  ops::GluFactorsBackward(dgate_up, dxa, dactivated,
                          {.xa = std::exchange(saved.gate_up_xa, Tensor()),
                           .b_gate = gate_up.SecondFactor(0, pass),
                           .b_up = gate_up.SecondFactor(1, pass),
                           .dxa_down = dxa_down,
                           .db_gate = gate_up.SecondGradient(0, gradients),
                           .db_up = gate_up.SecondGradient(1, gradients),
                           .da_down = down.FirstGradient(0, gradients),
                           .scale = pass.lora.scale,
                           .kind = kind});
  dactivated = Tensor();
  gate_up.AddFirstGradients(x, dxa, pass, gradients);
  if (dx != nullptr) gate_up.InputGradient(dgate_up, dxa, pass, *dx);
}

}  // namespace sft::engine
