#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/kernels/op_types.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine {

// Throws c10::Error unless the tensors of a GluFactorsBackward (ops.h) fit each other.
inline void CheckGluFactors(const at::Tensor& gate_up, const at::Tensor& dxa, const at::Tensor& dy,
                            const ops::GluFactors& f) {
  constexpr const char* kName = "GluFactorsBackward";
  TORCH_CHECK(gate_up.dim() == 2 && gate_up.size(1) % 2 == 0 && f.b_gate.dim() == 2, kName,
              ": gate_up is ", gate_up.sizes(), ", b_gate ", f.b_gate.sizes());
  const int64_t tokens = gate_up.size(0), width = gate_up.size(1) / 2, rank = f.b_gate.size(1);
  CheckRows(gate_up, tokens, 2 * width, gate_up, kName);
  CheckRows(dxa, tokens, 2 * rank, gate_up, kName);
  CheckRows(dy, tokens, width, gate_up, kName);
  CheckRows(f.xa, tokens, 2 * rank, gate_up, kName);
  CheckRows(f.dxa_down, tokens, rank, gate_up, kName);
  for (const at::Tensor& b : {f.b_gate, f.b_up}) {
    CheckRows(b, width, rank, gate_up, kName);
    TORCH_CHECK(b.is_contiguous(), kName, ": a factor is not dense");
  }
  const auto check = [&](const at::Tensor& gradient, int64_t rows, int64_t columns) {
    TORCH_CHECK(gradient.dim() == 2 && gradient.size(0) == rows && gradient.size(1) == columns &&
                    gradient.scalar_type() == at::kFloat && gradient.is_contiguous() &&
                    gradient.device() == gate_up.device(),
                kName, ": a gradient is ", gradient.scalar_type(), " ", gradient.sizes(),
                ", must be dense fp32 [", rows, ", ", columns, "]");
  };
  check(f.db_gate, width, rank);
  check(f.db_up, width, rank);
  check(f.da_down, rank, width);
}

}  // namespace sft::engine
