#include "worker/engine/nn/expert_linear.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "worker/engine/base/error.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/projection.h"

namespace sft::engine {

using at::Tensor;

ExpertLinear::ExpertLinear(const UnitInfo& unit, const std::string& name) {
  const std::string module = unit.name + "." + name;
  weight_ = unit.Find(module + ".weight");
  if (weight_ < 0) throw InternalError(unit.name + " has no stack " + name);
  const auto holds = [this](const std::vector<int>& weights) { return weights[0] == weight_; };
  const auto& matrices = unit.shared_matrices;
  const auto found = std::find_if(matrices.begin(), matrices.end(), holds);
  if (found != matrices.end()) matrix_ = static_cast<int>(found - matrices.begin());
  bias_ = unit.Find(module + ".bias");
  lora_a_ = unit.Find(module + ".lora_A.weight");
  lora_b_ = unit.Find(module + ".lora_B.weight");
  const ParamInfo& weight = unit.params[weight_];
  experts_ = weight.experts;
  outputs_ = weight.shape[0] / experts_;
  inputs_ = weight.shape[1];
  if (lora_b_ < 0) return;
  rank_ = unit.params[lora_b_].shape[1];
  scale_ratio_ = unit.params[lora_b_].scale_ratio;
}

const Fp8Matrix* ExpertLinear::Fp8(const Pass& pass) const {
  if (pass.weights.fp8.empty() || matrix_ < 0) return nullptr;
  const Fp8Matrix& matrix = pass.weights.fp8[matrix_];
  return matrix.forward.defined() ? &matrix : nullptr;
}

ops::Fp8Rows ExpertLinear::Fp8Room(const Tensor& rows, const Pass& pass) const {
  if (!in_fp8(pass)) return {};
  return {at::empty(rows.sizes(), rows.options().dtype(at::kFloat8_e4m3fn)),
          at::empty({rows.size(0)}, rows.options().dtype(at::kFloat))};
}

ops::Fp8Rows ExpertLinear::Fp8Of(const Activation& x, const Pass& pass) const {
  if (x.fp8.values.defined()) return x.fp8;
  ops::Fp8Rows rows = Fp8Room(x.rows, pass);
  ops::Fp8Quantize(rows.values, rows.scale, x.rows);
  return rows;
}

Tensor ExpertLinear::Forward(Tensor& y, const Activation& input, const ops::RowGroups& groups,
                             const Pass& pass, const Tensor& adapter_rows) const {
  const Tensor& x = input.rows;
  if (pass.tile > 0 && !(ops::HasGroupedGemm(x, rank_) && outputs_ % 8 == 0)) {
    ForwardByExpert(y, x, groups, pass, adapter_rows);
    return {};
  }
  ops::GroupedAddend addend{.bias = Bias(pass)};
  if (rank_ > 0) {
    addend.a = at::empty({x.size(0), rank_}, x.options());
    addend.b = Matrices(lora_b_, pass).transpose(1, 2);
    ops::GroupedGemm(addend.a, x, Matrices(lora_a_, pass).transpose(1, 2), {}, ScaleOf(pass),
                     groups);
    if (adapter_rows.defined()) addend.a.mul_(adapter_rows);
  }
  if (const Fp8Matrix* fp8 = Fp8(pass)) {
    ops::GroupedFp8Gemm(y, Fp8Of(input, pass), fp8->forward.view({experts_, outputs_, inputs_}),
                        fp8->forward_scale, addend, /*fast_sums=*/false, groups);
  } else {
    ops::GroupedGemm(y, x, Matrices(weight_, pass).transpose(1, 2), addend, 1.0, groups);
  }
  return addend.a;
}

void ExpertLinear::ForwardByExpert(Tensor& y, const Tensor& x, const ops::RowGroups& groups,
                                   const Pass& pass, const Tensor& adapter_rows) const {
  const std::vector<int32_t>& begins = groups.OnHost();
  for (int64_t e = 0; e < experts_; ++e) {
    const int64_t begin = begins[e], count = begins[e + 1] - begin;
    if (count == 0) continue;
    const Tensor rows = x.narrow(0, begin, count).clone();
    // Apart: kernels choose by how memory is aligned.
    Tensor output = at::empty({count, outputs_}, y.options());
    AddProduct(output, rows, Matrices(weight_, pass)[e], {}, 1.0, pass);
    if (bias_ >= 0) ops::AddBias(output, Bias(pass)[e]);
    if (rank_ > 0) {
      Tensor product = at::empty({count, rank_}, x.options());
      AddProduct(product, rows, Matrices(lora_a_, pass)[e], {}, 1.0, pass);
      if (adapter_rows.defined()) product.mul_(adapter_rows.narrow(0, begin, count));
      AddProduct(output, product, Matrices(lora_b_, pass)[e], output, ScaleOf(pass), pass);
    }
    y.narrow(0, begin, count).copy_(output);
  }
}

Tensor ExpertLinear::AdapterGradient(const Tensor& dy, const ops::RowGroups& groups,
                                     const Pass& pass) const {
  if (rank_ == 0) return {};
  Tensor dxa = at::empty({dy.size(0), rank_}, dy.options());
  ops::GroupedGemm(dxa, dy, Matrices(lora_b_, pass), {}, ScaleOf(pass), groups);
  return dxa;
}

Tensor ExpertLinear::InputGradient(Tensor& dx, const Activation& dy, const ops::RowGroups& groups,
                                   const Pass& pass) const {
  ops::GroupedAddend addend{.a = AdapterGradient(dy.rows, groups, pass)};
  if (rank_ > 0) addend.b = Matrices(lora_a_, pass);
  if (const Fp8Matrix* fp8 = Fp8(pass)) {
    ops::GroupedFp8Gemm(dx, Fp8Of(dy, pass), fp8->backward.view({experts_, inputs_, outputs_}),
                        fp8->backward_scale, addend, /*fast_sums=*/true, groups);
  } else {
    ops::GroupedGemm(dx, dy.rows, Matrices(weight_, pass), addend, 1.0, groups);
  }
  return addend.a;
}

void ExpertLinear::AddGradients(const Tensor& dy, const Tensor& x, const Tensor& xa,
                                const Tensor& dxa, const ops::RowGroups& groups,
                                UnitGradients& gradients) const {
  const auto add = [&](const Tensor& stack, double beta, const Tensor& a, const Tensor& b) {
    if (!stack.defined()) return;
    Tensor sums = stack.view({experts_, -1, stack.size(1)});
    ops::GroupedGradient(sums, a, b, 1.0, beta, groups);
  };
  const ProductSum weight = gradients.Wants(weight_) ? gradients.Product(weight_) : ProductSum();
  add(weight.sum, weight.beta, dy, x);
  add(gradients.Buffer(lora_a_), 1.0, dxa, x);
  add(gradients.Buffer(lora_b_), 1.0, dy, xa);
  const Tensor bias = gradients.Buffer(bias_);
  if (!bias.defined()) return;
  const std::vector<int32_t>& begins = groups.OnHost();
  for (int64_t e = 0; e < experts_; ++e) {
    const int64_t count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    bias.narrow(0, e * outputs_, outputs_)
        .add_(at::sum(dy.narrow(0, begins[e], count), {0}, false, at::kFloat));
  }
}

bool ExpertLinear::trained(UnitGradients& gradients) const {
  return gradients.Wants(weight_) || gradients.Wants(bias_) || gradients.Wants(lora_a_) ||
         gradients.Wants(lora_b_);
}

Tensor ExpertLinear::Bias(const Pass& pass) const {
  return bias_ < 0 ? Tensor() : pass.weights[bias_].view({experts_, outputs_});
}

}  // namespace sft::engine
