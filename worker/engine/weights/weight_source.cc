#include "worker/engine/weights/weight_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Whether the weights of `matrix` stand one below the other, `stride` elements from row to row.
bool StandTogether(const MatrixInfo& matrix, const UnitWeights& weights, int64_t stride) {
  const Tensor& first = weights[matrix.members[0].weight];
  for (const MatrixInfo::Member& member : matrix.members) {
    const Tensor& weight = weights[member.weight];
    if (!weight.defined() || !weight.is_alias_of(first) || weight.stride(1) != 1 ||
        weight.stride(0) != stride ||
        weight.storage_offset() != first.storage_offset() + member.first_row * stride) {
      return false;
    }
  }
  return true;
}

int64_t BytesOf(const Fp8Matrix& matrix) {
  int64_t bytes = 0;
  for (const Tensor& each :
       {matrix.forward, matrix.forward_scale, matrix.backward, matrix.backward_scale}) {
    if (each.defined()) bytes += static_cast<int64_t>(each.nbytes());
  }
  return bytes;
}

}  // namespace

void JoinMatrices(const UnitInfo& unit, UnitWeights& weights) {
  weights.matrices.clear();
  for (int i = 0; i < static_cast<int>(unit.shared_matrices.size()); ++i) {
    const MatrixInfo matrix = unit.Matrix(i);
    const Tensor& first = weights[matrix.members[0].weight];
    if (!first.defined()) {  // another source's
      weights.matrices.emplace_back();
      continue;
    }
    const int64_t stride = first.stride(0);
    if (!StandTogether(matrix, weights, stride)) {
      throw InternalError("the weights beside " + unit.params[matrix.members[0].weight].name +
                          " do not stand in one matrix");
    }
    const bool has_room = stride == matrix.stride();
    const int64_t rank = has_room ? matrix.rank : 0;
    weights.matrices.push_back(
        first.as_strided({matrix.rows + rank, matrix.columns + rank}, {stride, 1}));
  }
}

void ComposedSource::Prefetch(int unit, WeightUse use) {
  for (auto& source : sources_) source->Prefetch(unit, use);
}

void ComposedSource::Acquire(int unit, UnitWeights& weights) {
  for (auto& source : sources_) source->Acquire(unit, weights);
}

void ComposedSource::Release(int unit) {
  for (auto& source : sources_) source->Release(unit);
}

void ComposedSource::Invalidate() {
  for (auto& source : sources_) source->Invalidate();
}

int64_t ComposedSource::ResidentBytes() const {
  int64_t bytes = 0;
  for (const auto& source : sources_) bytes += source->ResidentBytes();
  return bytes;
}

bool ComposedSource::fixed() const {
  return std::all_of(sources_.begin(), sources_.end(),
                     [](const auto& source) { return source->fixed(); });
}

ResidentSource::ResidentSource(const ModelLayout& layout) {
  for (const UnitInfo& unit : layout.units) units_.emplace_back(unit);
}

void ResidentSource::Set(int unit, int param, at::Tensor tensor) {
  units_[unit][param] = std::move(tensor);
}

void ResidentSource::SetFp8(const UnitInfo& info, int unit, std::vector<Fp8Matrix> matrices) {
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (!matrices[i].forward.defined()) continue;
    for (const int weight : info.shared_matrices[i]) units_[unit][weight] = Tensor();
  }
  units_[unit].fp8 = std::move(matrices);
}

void ResidentSource::AllocateMatrices(const UnitInfo& info, int unit,
                                      const at::TensorOptions& options) {
  for (int i = 0; i < static_cast<int>(info.shared_matrices.size()); ++i) {
    const MatrixInfo matrix = info.Matrix(i);
    if (info.params[matrix.members[0].weight].quantized) continue;  // another source's
    const Tensor rows = at::empty({matrix.rows + matrix.rank, matrix.stride()}, options);
    for (const MatrixInfo::Member& member : matrix.members) {
      units_[unit][member.weight] =
          rows.narrow(0, member.first_row, member.rows).narrow(1, 0, matrix.columns);
    }
  }
}

void ResidentSource::Acquire(int unit, UnitWeights& weights) {
  const std::vector<Tensor>& own = units_[unit].params;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i].defined()) weights.params[i] = own[i];
  }
  if (!units_[unit].fp8.empty()) weights.fp8 = units_[unit].fp8;
}

int64_t ResidentSource::ResidentBytes() const {
  int64_t bytes = 0;
  for (const UnitWeights& unit : units_) {
    for (const Tensor& tensor : unit.params) {
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
    }
    for (const Fp8Matrix& matrix : unit.fp8) bytes += BytesOf(matrix);
  }
  return bytes;
}

}  // namespace sft::engine
