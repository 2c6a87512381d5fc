#include "worker/engine/generate/nf4_weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

namespace {

bool CanBeNf4(const UnitInfo& unit, int index, const std::set<std::string>& as_they_are) {
  const MatrixInfo matrix = unit.Matrix(index);
  if (matrix.columns % kNf4Block != 0) return false;
  return std::all_of(matrix.members.begin(), matrix.members.end(), [&](const auto& member) {
    const ParamInfo& param = unit.params[member.weight];
    return param.role == ParamRole::kLinear && param.experts == 0 &&
           !as_they_are.contains(param.name);
  });
}

// What is read where the absmax was quantised a second time; as the kernels, with one rounding
// after the other.
Tensor TwiceQuantised(const Tensor& absmax) {
  const ops::NestedAbsmax nested = ops::AbsmaxQuantize(absmax);
  const Tensor map =
      at::from_blob(const_cast<float*>(kDynamicMap), {256}, at::kFloat).to(absmax.device());
  const Tensor scales =
      nested.nested_absmax.repeat_interleave(kNestedBlock).narrow(0, 0, absmax.numel());
  return map.index_select(0, nested.codes.to(at::kLong)).mul_(scales).add_(nested.offset);
}

}  // namespace

void MarkNf4(ModelLayout& layout, const std::set<std::string>& as_they_are) {
  for (UnitInfo& unit : layout.units) {
    for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
      const bool quantised = CanBeNf4(unit, i, as_they_are);
      for (const int param : unit.shared_matrices[i]) unit.params[param].quantized = quantised;
    }
  }
}

Nf4Weights::Nf4Weights(const ModelLayout& layout, const BaseWeights& base) {
  for (const UnitInfo& unit : layout.units) {
    std::vector<Nf4Matrix>& matrices = matrices_.emplace_back(unit.shared_matrices.size());
    for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
      const MatrixInfo matrix = unit.Matrix(i);
      std::vector<Tensor> codes, absmax;
      for (const MatrixInfo::Member& member : matrix.members) {
        const ParamInfo& param = unit.params[member.weight];
        if (!param.quantized) break;
        const int64_t count = member.rows * matrix.columns;
        const ops::Nf4Codes nf4 = ops::Nf4Quantize(base.Read(param, 0, count));
        codes.push_back(nf4.codes.view({member.rows, -1}));
        const Tensor read = base.HoldsNf4(param) ? nf4.absmax : TwiceQuantised(nf4.absmax);
        absmax.push_back(read.view({member.rows, -1}));
        base.Done(param);
      }
      if (codes.empty()) continue;
      const ops::Nf4Codes packed = ops::Nf4Prepack(at::cat(codes), at::cat(absmax));
      matrices[i] = {packed.codes, packed.absmax};
    }
  }
}

int64_t Nf4Weights::ResidentBytes() const {
  int64_t bytes = 0;
  for (const auto& unit : matrices_) {
    for (const Nf4Matrix& matrix : unit) {
      if (matrix.codes.defined()) bytes += matrix.codes.nbytes() + matrix.absmax.nbytes();
    }
  }
  return bytes;
}

}  // namespace sft::engine
