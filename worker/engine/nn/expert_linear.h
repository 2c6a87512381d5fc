#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "worker/engine/kernels/op_types.h"
#include "worker/engine/nn/pass.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// One linear layer of every expert of a layer, as products of the rows that each expert gets:
// y = x W_e^T + b_e (+ scale * x A_e^T B_e^T), where x and y are rows [S, K] and [S, N] sorted by
// expert: group e of the groups has expert e's. The weights are one stack, W [E N, K]; so are the
// adapters' factors, A [E r, K] and B [E N, r]. Holds positions of parameters, no tensors.
//
// Where the source gives the stack in FP8, the products with it are in FP8, and the adapters'
// second products join them in bf16. x and dy may bring their rows in FP8 (Fp8Room); else they are
// converted here.
class ExpertLinear {
 public:
  ExpertLinear() = default;
  // `name`: of the stack within the unit, "mlp.experts.down_proj".
  ExpertLinear(const UnitInfo& unit, const std::string& name);

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  // The rank of each expert's adapter; 0: has none.
  int64_t rank() const { return rank_; }

  // Writes y. Returns s x A^T [S, r] for the backward, with s the adapters' scale; undefined
  // without adapters and of no use where the pass is of generation (Pass::tile). `adapter_rows` [S,
  // 1] as Pass::adapter_rows has them by token.
  at::Tensor Forward(at::Tensor& y, const Activation& x, const ops::RowGroups& groups,
                     const Pass& pass, const at::Tensor& adapter_rows) const;
  // Writes dx [S, K] of dy [S, N]. Returns s dy B [S, r], for AddGradients.
  at::Tensor InputGradient(at::Tensor& dx, const Activation& dy, const ops::RowGroups& groups,
                           const Pass& pass) const;
  // True where its products are in FP8.
  bool in_fp8(const Pass& pass) const { return Fp8(pass) != nullptr; }
  // Where who makes the rows x or dy writes them in FP8 too; empty where the products are not.
  ops::Fp8Rows Fp8Room(const at::Tensor& rows, const Pass& pass) const;
  // s dy B [S, r] alone; undefined without adapters.
  at::Tensor AdapterGradient(const at::Tensor& dy, const ops::RowGroups& groups,
                             const Pass& pass) const;
  // Adds the parameters' gradients. xa and dxa: what Forward and InputGradient gave.
  void AddGradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& xa,
                    const at::Tensor& dxa, const ops::RowGroups& groups,
                    UnitGradients& gradients) const;
  // True if one of its parameters is trained.
  bool trained(UnitGradients& gradients) const;
  // True if a gradient needs the rows x.
  bool needs_input(UnitGradients& gradients) const {
    return gradients.Wants(weight_) || gradients.Wants(lora_a_);
  }
  // True if the stack itself or its biases are trained.
  bool stack_trained(UnitGradients& gradients) const {
    return gradients.Wants(weight_) || gradients.Wants(bias_);
  }
  // [E, N]; undefined without biases.
  at::Tensor Bias(const Pass& pass) const;

 private:
  // Forward for generation where products of groups have no kernel: a row's bits do not depend on
  // where it lies nor on the others.
  void ForwardByExpert(at::Tensor& y, const at::Tensor& x, const ops::RowGroups& groups,
                       const Pass& pass, const at::Tensor& adapter_rows) const;
  // Null where the products are not in FP8.
  const Fp8Matrix* Fp8(const Pass& pass) const;
  ops::Fp8Rows Fp8Of(const Activation& x, const Pass& pass) const;
  double ScaleOf(const Pass& pass) const { return pass.lora.scale * scale_ratio_; }
  // A stack of parameter `param` as [E, rows, columns].
  at::Tensor Matrices(int param, const Pass& pass) const {
    const at::Tensor& stack = pass.weights[param];
    return stack.view({experts_, -1, stack.size(1)});
  }

  int matrix_ = -1;  // of UnitInfo::shared_matrices
  int weight_ = -1, bias_ = -1, lora_a_ = -1, lora_b_ = -1;
  int64_t experts_ = 0, outputs_ = 0, inputs_ = 0, rank_ = 0;
  double scale_ratio_ = 1.0;
};

}  // namespace sft::engine
