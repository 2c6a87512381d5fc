#include "worker/engine/nn/mlp.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid_backward.h>

#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

void Mlp::Forward(Tensor& y, Activation x, const Tensor& residual, const Pass& pass,
                  Saved& saved) const {
  RestoreOutputGate(x.rows, pass, saved);
  RestoreGateUp(std::move(x), pass, saved);
  Activation activated = Activated(pass, saved, /*again=*/false);
  const Tensor rows = activated.rows;
  saved.down_xa = down.Forward(y, std::move(activated), pass, residual);
  if (!MakesProductAgain(saved.gate_up, pass)) {
    saved.activated = rows;
  } else {
    saved.down_xa = ApartFrom(rows, saved.down_xa);
  }
}

void Mlp::Restore(Activation x, const Pass& pass, Saved& saved) const {
  RestoreOutputGate(x.rows, pass, saved);
  RestoreGateUp(std::move(x), pass, saved);
  if (saved.activated.defined() || MakesProductAgain(saved.gate_up, pass)) return;
  saved.activated = Activated(pass, saved, /*again=*/true).rows;
}

Activation Mlp::Activated(const Pass& pass, const Saved& saved, bool again) const {
  // Rows that are multiplied afterwards are not in FP8 yet.
  Activation out = again || HasOutputGate() ? Activation(down.EmptyInputRows(saved.gate_up))
                                            : down.EmptyInput(saved.gate_up, pass);
  if (gated) {
    ops::Glu(out.rows, saved.gate_up, kind, out.fp8);
  } else {
    ops::Activate(out.rows, saved.gate_up, kind, out.fp8);
  }
  if (HasOutputGate()) out.rows.mul_(Sigmoids(saved.output_gate.to(at::kFloat)));
  return out;
}

void Mlp::RestoreOutputGate(const Tensor& x, const Pass& pass, Saved& saved) const {
  if (!HasOutputGate() || saved.output_gate.defined()) return;
  Tensor rows = x;
  if (output_gate.spare() > 0) {
    // The spare columns of x are for the adapters of `gate_up`.
    rows = output_gate.EmptyInputRows(x);
    rows.copy_(x);
  }
  saved.output_gate = at::empty({x.size(0), 1}, x.options());
  const Tensor xa = output_gate.Forward(saved.output_gate, Activation(rows), pass);
  saved.output_gate_xa = ApartFrom(rows, xa);
}

Tensor Mlp::OutputGateBackward(const Tensor& dshare, const Tensor& share, const Tensor& x,
                               const Pass& pass, Saved& saved, UnitGradients& gradients,
                               bool need_dx) const {
  Tensor dgate = output_gate.EmptyGradientRows(x);
  dgate.copy_(at::sigmoid_backward(dshare, share).unsqueeze(1));
  Tensor dx;
  if (need_dx) dx = at::empty(x.sizes(), x.options());
  output_gate.Backward(Activation(dgate), x, std::exchange(saved.output_gate_xa, Tensor()), pass,
                       gradients, need_dx ? &dx : nullptr);
  saved.output_gate = Tensor();
  return dx;
}

void Mlp::RestoreGateUp(Activation x, const Pass& pass, Saved& saved) const {
  if (!restores_gate_up(saved)) return;
  // Spare columns already: the backward turns these rows into their own gradient.
  saved.gate_up = EmptyRows(gate_up.OutputTokens(x.rows.size(0), pass), gate_up.outputs(),
                            gate_up.spare(), x.rows);
  saved.gate_up_xa = gate_up.Forward(saved.gate_up, std::move(x), pass);
}

bool Mlp::MakesProductAgain(const Tensor& rows, const Pass& pass) const {
  const int64_t rank = gate_up.common_rank();
  // Gate and up may also be one linear, with one adapter for both.
  return rank > 0 && gated && !HasOutputGate() && !gate_up.has_gains() && !down.has_gains() &&
         gate_up.members() == 2 && down.members() == 1 && down.common_rank() == rank &&
         !pass.drops() && ops::HasGluFactors(rows, rank);
}

void Mlp::Backward(Activation dy, const Tensor& x, const Pass& pass, Saved& saved,
                   UnitGradients& gradients, Tensor* dx) const {
  if (MakesProductAgain(saved.gate_up, pass)) {
    BackwardInOnePass(std::move(dy), x, pass, saved, gradients, dx);
    return;
  }
  const bool go_on = dx != nullptr || gate_up.trained(gradients) ||
                     (HasOutputGate() && output_gate.trained(gradients));
  Tensor dactivated;
  if (go_on) dactivated = at::empty({saved.gate_up.size(0), down.inputs()}, dy.rows.options());
  down.Backward(std::move(dy), saved.activated, saved.down_xa, pass, gradients,
                go_on ? &dactivated : nullptr);
  saved.activated = saved.down_xa = Tensor();
  if (!go_on) return;
  Activation dgate_up = std::exchange(saved.gate_up, Tensor());
  Tensor of_output_gate;
  if (HasOutputGate()) {
    const Tensor share = Sigmoids(saved.output_gate.to(at::kFloat)).flatten();
    const Tensor dshare =
        ops::WeighedGluBackward(dgate_up.rows, dactivated, dgate_up.rows, share, kind);
    of_output_gate =
        OutputGateBackward(dshare, share, x, pass, saved, gradients, /*need_dx=*/dx != nullptr);
  } else if (gated) {
    ops::GluBackward(dgate_up.rows, dactivated, dgate_up.rows, kind);
  } else {
    dgate_up.sums = gate_up.EmptySums(dgate_up.rows);
    ops::ActivateBackward(dgate_up.rows, dactivated, dgate_up.rows, kind, dgate_up.sums);
  }
  dactivated = Tensor();
  gate_up.Backward(std::move(dgate_up), x, std::exchange(saved.gate_up_xa, Tensor()), pass,
                   gradients, dx);
  if (of_output_gate.defined()) dx->add_(of_output_gate);
}

// Adapters are trained together, and never beside the weights that they adapt; biases may be.
void Mlp::BackwardInOnePass(Activation dy, const Tensor& x, const Pass& pass, Saved& saved,
                            UnitGradients& gradients, Tensor* dx) const {
  down.AddBiasGradients(dy, gradients);
  dy = down.GatheredGradient(std::move(dy), pass);
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
  gate_up.AddBiasGradients(dgate_up, gradients);
  gate_up.FinishBackward(dgate_up, x, dxa, pass, gradients, dx);
}

}  // namespace sft::engine
