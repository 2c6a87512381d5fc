#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/projection.h"

namespace sft::engine {

// down(act(gate(x)) * up(x)), or down(act(up(x))) where it is not gated. T tokens, H hidden size, I
// intermediate size. Rows have the spare columns that their projection asks for (projection.h).
//
// With an output gate what it writes counts s = sigmoid(output_gate(x)), a number of each token.
// What `down` reads is multiplied by s, which comes to the same: with a the product of the
// activation and da' the gradient of s a,
//
//       ds = <a, da'>,  da = s da'
struct Mlp {
  Projection gate_up, down;  // not gated: `gate_up` is up alone
  Projection output_gate;    // of one output; empty: there is none
  bool gated = true;
  plan::ActivationKind kind = plan::ActivationKind::kSilu;

  // Activations kept for the backward; Restore computes undefined ones again.
  struct Saved {
    at::Tensor gate_up;      // rows [T, 2 I]; not gated: [T, I]
    at::Tensor activated;    // rows [T, I]: what `down` reads; never kept where MakesProductAgain
    at::Tensor output_gate;  // [T, 1], before the sigmoid
    at::Tensor gate_up_xa, down_xa, output_gate_xa;
  };

  // Writes y [T, H] = the layer of x [T, H], plus `residual` where it is defined.
  void Forward(at::Tensor& y, Activation x, const at::Tensor& residual, const Pass& pass,
               Saved& saved) const;
  // Computes what is missing in `saved`, but for the output.
  void Restore(Activation x, const Pass& pass, Saved& saved) const;
  // True if Restore computes the product of x again.
  bool restores_gate_up(const Saved& saved) const { return !saved.gate_up.defined(); }
  // Adds the parameters' gradients; writes that of x [T, H] only where dx is not null. Consumes
  // `saved`.
  void Backward(Activation dy, const at::Tensor& x, const Pass& pass, Saved& saved,
                UnitGradients& gradients, at::Tensor* dx) const;

 private:
  bool HasOutputGate() const { return output_gate.outputs() > 0; }
  void RestoreOutputGate(const at::Tensor& x, const Pass& pass, Saved& saved) const;
  // Adds the output gate's gradients, of `dshare` [T], that of its sigmoid `share` [T], both fp32;
  // returns what it adds to that of x, if needed.
  at::Tensor OutputGateBackward(const at::Tensor& dshare, const at::Tensor& share,
                                const at::Tensor& x, const Pass& pass, Saved& saved,
                                UnitGradients& gradients, bool need_dx) const;
  // Makes what `down` reads, `again`: for the backward alone.
  Activation Activated(const Pass& pass, const Saved& saved, bool again) const;
  void RestoreGateUp(Activation x, const Pass& pass, Saved& saved) const;
  // True if the backward makes act(gate) * up itself, in the one pass over rows like `gate_up`
  // that also has the adapters' gradients (ops::GluFactorsBackward).
  bool MakesProductAgain(const at::Tensor& gate_up, const Pass& pass) const;
  void BackwardInOnePass(Activation dy, const at::Tensor& x, const Pass& pass, Saved& saved,
                         UnitGradients& gradients, at::Tensor* dx) const;
};

}  // namespace sft::engine
