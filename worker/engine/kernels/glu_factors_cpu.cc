#include <ATen/ops/empty.h>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/glu_factors.h"

namespace sft::engine::cpu {

using at::Tensor;

bool HasGluFactors(const Tensor&, int64_t) { return true; }

// One after the other, as they are written: what the CUDA kernel is compared with.
void GluFactorsBackward(Tensor& gate_up, Tensor& dxa, const Tensor& dy, const ops::GluFactors& f) {
  CheckGluFactors(gate_up, dxa, dy, f);
  const int64_t tokens = gate_up.size(0), width = gate_up.size(1) / 2, rank = f.b_gate.size(1);
  Tensor db_gate = f.db_gate, db_up = f.db_up, da_down = f.da_down;
  {
    Tensor h = at::empty({tokens, width}, gate_up.options());
    Glu(h, gate_up, f.kind, /*fp8=*/{});
    Gemm(da_down, f.dxa_down.t(), h, 1.0, 1.0);
  }
  GluBackward(gate_up, dy, gate_up, f.kind);
  const Tensor dgate = gate_up.narrow(1, 0, width), dup = gate_up.narrow(1, width, width);
  Gemm(db_gate, dgate.t(), f.xa.narrow(1, 0, rank), f.scale, 1.0);
  Gemm(db_up, dup.t(), f.xa.narrow(1, rank, rank), f.scale, 1.0);
  Tensor of_gate = dxa.narrow(1, 0, rank), of_up = dxa.narrow(1, rank, rank);
  Gemm(of_gate, dgate, f.b_gate, f.scale, 0.0);
  Gemm(of_up, dup, f.b_up, f.scale, 0.0);
}

}  // namespace sft::engine::cpu
