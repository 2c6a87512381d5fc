#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/projection.h"

namespace sft::engine {

// down(silu(gate(x)) * up(x)). T tokens, H hidden size, I intermediate size. Rows have the spare
// columns that their projection asks for (projection.h).
struct GatedMlp {
  Projection gate_up, down;

  // What the backward needs; undefined tensors are computed again by Restore.
  struct Saved {
    at::Tensor gate_up;    // rows [T, 2 I]
    at::Tensor activated;  // rows [T, I]: silu(gate) * up; never kept where MakesProductAgain
    at::Tensor gate_up_xa, down_xa;
  };

  // Writes y [T, H] = residual + the layer of x, rows [T, H]. x_fp8 and dy_fp8: projection.h.
  void Forward(at::Tensor& y, const at::Tensor& x, const at::Tensor& residual, const Pass& pass,
               Saved& saved, ops::Fp8Rows x_fp8 = {}) const;
  // Computes what is missing in `saved`, but for the output.
  void Restore(const at::Tensor& x, const Pass& pass, Saved& saved, ops::Fp8Rows x_fp8 = {}) const;
  // Whether Restore multiplies x.
  bool restores_gate_up(const Saved& saved) const { return !saved.gate_up.defined(); }
  // Adds the parameters' gradients; writes that of x [T, H] only where dx is not null. Consumes
  // `saved`.
  void Backward(const at::Tensor& dy, const at::Tensor& x, const Pass& pass, Saved& saved,
                UnitGradients& gradients, at::Tensor* dx, ops::Fp8Rows dy_fp8 = {}) const;

 private:
  void RestoreGateUp(const at::Tensor& x, const Pass& pass, Saved& saved, ops::Fp8Rows x_fp8) const;
  at::Tensor Activate(const at::Tensor& gate_up, const ops::Fp8Rows& fp8) const;
  // Whether the backward makes silu(gate) * up itself, in the one pass over rows like `gate_up`
  // that also has the adapters' gradients (ops::SwigluFactorsBackward).
  bool MakesProductAgain(const at::Tensor& gate_up, const Pass& pass) const;
  void BackwardInOnePass(const at::Tensor& dy, const at::Tensor& x, const Pass& pass, Saved& saved,
                         UnitGradients& gradients, at::Tensor* dx, ops::Fp8Rows dy_fp8) const;
};

}  // namespace sft::engine
