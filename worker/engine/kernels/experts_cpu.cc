#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/grouped_checks.h"

namespace sft::engine::cpu {

using at::Tensor;

void GroupedGemm(Tensor& out, const Tensor& a, const Tensor& b, const ops::GroupedAddend& addend,
                 double alpha, const ops::RowGroups& groups) {
  CheckGroupedGemm(out, a, b, addend, alpha, groups);
  GemmByGroup(out, a, b, addend, alpha, groups, Gemm, AddBias);
}

void GroupedFp8Gemm(Tensor& out, const ops::Fp8Rows& a, const Tensor& b, const Tensor& b_scale,
                    const ops::GroupedAddend& addend, bool fast_sums,
                    const ops::RowGroups& groups) {
  CheckGroupedFp8Gemm(out, a, b, b_scale, addend, groups);
  const std::vector<int32_t>& begins = groups.OnHost();
  const Tensor scales = b_scale.view({groups.count(), -1});
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t begin = begins[g], count = begins[g + 1] - begin;
    if (count == 0) continue;
    Tensor rows = out.narrow(0, begin, count);
    Fp8Gemm(rows, a.values.narrow(0, begin, count), a.scale.narrow(0, begin, count), b.select(0, g),
            scales.select(0, g), {}, fast_sums);
    if (addend.bias.defined()) AddBias(rows, addend.bias.view({groups.count(), -1}).select(0, g));
  }
  if (addend.a.defined()) AddByGroup(out, addend, groups, Gemm);
}

bool HasGroupedGemm(const Tensor& /*a*/, int64_t /*more_columns*/) { return false; }

void GroupedGradient(Tensor& sums, const Tensor& a, const Tensor& b, double alpha, double beta,
                     const ops::RowGroups& groups) {
  CheckGroupedGradient(sums, a, b, groups);
  GradientByGroup(sums, a, b, alpha, beta, groups, Gemm);
}

void TakeRows(Tensor& out, const Tensor& x, const Tensor& of) {
  CheckTakeRows(out, x, of);
  at::index_select_out(out, x, 0, of);
}

void CombineRows(Tensor& y, const Tensor& x, const Tensor& places, const Tensor& weights,
                 const Tensor& addend) {
  CheckCombineRows(y, x, places, weights, addend);
  Tensor sum;
  for (int64_t c = 0; c < places.size(1); ++c) {
    Tensor choice = x.index_select(0, places.select(1, c)).to(at::kFloat);
    if (weights.defined()) choice.mul_(weights.narrow(1, c, 1));
    sum = sum.defined() ? sum.add_(choice) : choice;
  }
  if (addend.defined()) sum.add_(addend);
  y.copy_(sum);
}

Tensor WeighedGluBackward(Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                          const Tensor& weights, plan::ActivationKind kind,
                          const ops::Fp8Rows& fp8) {
  CheckWeighedGluBackward(dgate_up, dy, gate_up, weights);
  Tensor activated = at::empty(dy.sizes(), dy.options());
  Glu(activated, gate_up, kind, {});
  Tensor products = at::sum(activated.mul_(dy), {1}, false, at::kFloat);
  GluBackward(dgate_up, at::mul(dy, weights.unsqueeze(1).to(dy.scalar_type())), gate_up, kind);
  Fp8QuantizeToo(fp8, dgate_up, "WeighedGluBackward");
  return products;
}

}  // namespace sft::engine::cpu
