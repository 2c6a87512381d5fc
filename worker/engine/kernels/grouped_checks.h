#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/kernels/fp8_rows.h"
#include "worker/engine/kernels/op_types.h"
#include "worker/engine/kernels/rows.h"

// What the implementations of products of groups share, whatever the device.

namespace sft::engine {

// Throws unless `groups` can sort `rows`, and the matrices [G, K, N] are of their type.
inline void CheckGroups(const ops::RowGroups& groups, const at::Tensor& matrices,
                        const at::Tensor& rows, const char* operation) {
  const at::Tensor& begins = groups.begins();
  TORCH_CHECK(begins.defined() && begins.scalar_type() == at::kInt && begins.is_contiguous() &&
                  begins.device() == rows.device() && groups.count() > 0,
              operation, ": begins must be int32 [groups + 1], dense, beside the rows");
  TORCH_CHECK(matrices.dim() == 3 && matrices.size(0) == groups.count(), operation, ": ",
              matrices.sizes(), " is not a matrix for each of ", groups.count(), " groups");
}

inline void CheckGroupMatrices(const at::Tensor& b, const at::Tensor& a, int64_t columns,
                               const char* operation) {
  CheckRows(a, a.size(0), b.size(1), a, operation);
  TORCH_CHECK(b.size(2) == columns && b.scalar_type() == a.scalar_type() &&
                  b.device() == a.device() && (b.stride(1) == 1 || b.stride(2) == 1),
              operation, ": b is ", b.scalar_type(), b.sizes(), " with strides ", b.strides(),
              " for rows of ", a.scalar_type(), a.sizes());
}

inline void CheckGroupedGemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                             const ops::GroupedAddend& addend, double alpha,
                             const ops::RowGroups& groups) {
  constexpr const char* kName = "GroupedGemm";
  CheckGroups(groups, b, a, kName);
  CheckRows(out, a.size(0), b.size(2), a, kName);
  CheckGroupMatrices(b, a, out.size(1), kName);
  if (addend.a.defined()) {
    TORCH_CHECK(alpha == 1.0, kName, ": alpha is ", alpha, " beside a second product");
    CheckGroups(groups, addend.b, a, kName);
    CheckRows(addend.a, a.size(0), addend.b.size(1), a, kName);
    CheckGroupMatrices(addend.b, addend.a, out.size(1), kName);
  }
  if (addend.bias.defined()) {
    CheckVector(addend.bias, groups.count() * out.size(1), a, "GroupedGemm: bias");
  }
}

inline void CheckGroupedFp8Gemm(const at::Tensor& out, const ops::Fp8Rows& a, const at::Tensor& b,
                                const at::Tensor& b_scale, const ops::GroupedAddend& addend,
                                const ops::RowGroups& groups) {
  constexpr const char* kName = "GroupedFp8Gemm";
  CheckGroups(groups, b, out, kName);
  const int64_t outputs = b.size(1), rows = out.size(0);
  CheckRows(out, rows, outputs, out, kName);
  CheckFp8Rows(a.values, rows, b.size(2), out, kName);
  CheckRowScale(a.scale, a.values, kName);
  TORCH_CHECK(
      b.scalar_type() == at::kFloat8_e4m3fn && b.stride(2) == 1 && b.device() == out.device(),
      kName, ": b is ", b.scalar_type(), b.sizes(), " with strides ", b.strides());
  TORCH_CHECK(b_scale.scalar_type() == at::kFloat && b_scale.is_contiguous() &&
                  b_scale.numel() == groups.count() * outputs && b_scale.device() == out.device(),
              kName, ": b_scale is ", b_scale.scalar_type(), b_scale.sizes(), ", must be fp32 of ",
              groups.count(), " times ", outputs, ", dense, beside the matrices");
  if (addend.a.defined()) {
    CheckGroups(groups, addend.b, out, kName);
    CheckRows(addend.a, rows, addend.b.size(1), out, kName);
    CheckGroupMatrices(addend.b, addend.a, outputs, kName);
  }
  if (addend.bias.defined()) {
    CheckVector(addend.bias, groups.count() * outputs, out, "GroupedFp8Gemm: bias");
  }
}

inline void CheckGroupedGradient(const at::Tensor& sums, const at::Tensor& a, const at::Tensor& b,
                                 const ops::RowGroups& groups) {
  constexpr const char* kName = "GroupedGradient";
  CheckGroups(groups, sums, a, kName);
  CheckRows(a, a.size(0), sums.size(1), a, kName);
  CheckRows(b, a.size(0), sums.size(2), a, kName);
  TORCH_CHECK(sums.is_contiguous() && sums.device() == a.device() &&
                  (sums.scalar_type() == at::kFloat || sums.scalar_type() == a.scalar_type()),
              kName, ": sums must be dense, fp32 or of the type of the rows, beside them");
}

inline void CheckTakeRows(const at::Tensor& out, const at::Tensor& x, const at::Tensor& of) {
  CheckRows(x, x.size(0), x.size(1), x, "TakeRows: x");
  CheckRows(out, of.numel(), x.size(1), x, "TakeRows: out");
  TORCH_CHECK(of.scalar_type() == at::kLong && of.is_contiguous() && of.device() == x.device(),
              "TakeRows: of must be int64, dense, beside the rows");
}

inline void CheckCombineRows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& places,
                             const at::Tensor& weights, const at::Tensor& addend) {
  constexpr const char* kName = "CombineRows";
  CheckRows(x, x.size(0), x.size(1), x, kName);
  CheckRows(y, y.size(0), x.size(1), x, kName);
  TORCH_CHECK(places.dim() == 2 && places.size(0) == y.size(0) && places.is_contiguous() &&
                  places.scalar_type() == at::kLong && places.device() == x.device(),
              kName, ": places must be int64 [", y.size(0), ", choices], dense, beside the rows");
  if (weights.defined()) {
    TORCH_CHECK(weights.is_contiguous() && weights.numel() == places.numel() &&
                    weights.scalar_type() == at::kFloat && weights.device() == x.device(),
                kName, ": weights must be fp32, dense, one for each place");
  }
  if (addend.defined()) {
    TORCH_CHECK(addend.scalar_type() == at::kFloat || addend.scalar_type() == y.scalar_type(),
                kName, ": the addend is ", addend.scalar_type());
    CheckRows(addend, y.size(0), y.size(1), addend, kName);
  }
}

inline void CheckWeighedGluBackward(const at::Tensor& dgate_up, const at::Tensor& dy,
                                    const at::Tensor& gate_up, const at::Tensor& weights) {
  constexpr const char* kName = "WeighedGluBackward";
  CheckRows(gate_up, dy.size(0), 2 * dy.size(1), gate_up, kName);
  CheckRows(dy, dy.size(0), dy.size(1), gate_up, kName);
  CheckRows(dgate_up, gate_up.size(0), gate_up.size(1), gate_up, kName);
  TORCH_CHECK(weights.is_contiguous() && weights.numel() == dy.size(0) &&
                  weights.scalar_type() == at::kFloat && weights.device() == dy.device(),
              kName, ": weights must be fp32 [", dy.size(0), "], dense, beside the rows");
}

// Adds addend.a_g addend.b_g to the rows of each group; `gemm` as ops::Gemm, here and below.
template <typename Gemm>
void AddByGroup(at::Tensor& out, const ops::GroupedAddend& addend, const ops::RowGroups& groups,
                const Gemm& gemm) {
  const std::vector<int32_t>& begins = groups.OnHost();
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t begin = begins[g], count = begins[g + 1] - begin;
    if (count == 0) continue;
    at::Tensor rows = out.narrow(0, begin, count);
    gemm(rows, addend.a.narrow(0, begin, count), addend.b.select(0, g), 1.0, 1.0);
  }
}

// GroupedGemm and GroupedGradient group by group; `add_bias` as ops::AddBias.
template <typename Gemm, typename AddBias>
void GemmByGroup(at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                 const ops::GroupedAddend& addend, double alpha, const ops::RowGroups& groups,
                 const Gemm& gemm, const AddBias& add_bias) {
  const std::vector<int32_t>& begins = groups.OnHost();
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t begin = begins[g], count = begins[g + 1] - begin;
    if (count == 0) continue;
    at::Tensor rows = out.narrow(0, begin, count);
    gemm(rows, a.narrow(0, begin, count), b.select(0, g), alpha, 0.0);
    if (addend.bias.defined()) add_bias(rows, addend.bias.view({groups.count(), -1}).select(0, g));
  }
  if (addend.a.defined()) AddByGroup(out, addend, groups, gemm);
}

template <typename Gemm>
void GradientByGroup(at::Tensor& sums, const at::Tensor& a, const at::Tensor& b, double alpha,
                     double beta, const ops::RowGroups& groups, const Gemm& gemm) {
  const std::vector<int32_t>& begins = groups.OnHost();
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int64_t begin = begins[g], count = begins[g + 1] - begin;
    at::Tensor sum = sums.select(0, g);
    if (count > 0) {
      gemm(sum, a.narrow(0, begin, count).t(), b.narrow(0, begin, count), alpha, beta);
    } else if (beta == 0.0) {
      sum.zero_();
    } else if (beta != 1.0) {
      sum.mul_(beta);
    }
  }
}

}  // namespace sft::engine
