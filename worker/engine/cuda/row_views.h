#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "worker/engine/cuda/kernels/launch.h"
#include "worker/engine/kernels/fp8_rows.h"
#include "worker/engine/kernels/op_types.h"
#include "worker/engine/kernels/rows.h"

// Tensors as the launchers take them.

namespace sft::engine::cuda {

inline ConstRows Read(const at::Tensor& x) { return {x.const_data_ptr(), x.stride(0)}; }
inline MutableRows Write(at::Tensor& x) { return {x.mutable_data_ptr(), x.stride(0)}; }
inline NormScaling ScalingOf(const ops::NormOptions& options) {
  return {static_cast<float>(options.epsilon), FormOf(options.kind)};
}

// Rows in FP8 with the scale of each, both checked.
inline Fp8Output WriteFp8(at::Tensor values, at::Tensor scale) {
  return {.rows = Write(values),
          .scale = scale.mutable_data_ptr<float>(),
          .scaling = {ops::kFp8Room / kFp8Largest, kFp8SmallestScale}};
}
// The FP8 target of an operation that makes the rows x, checked.
inline Fp8Output WriteFp8Too(const ops::Fp8Rows& fp8, const at::Tensor& x, const char* operation) {
  return WantsFp8(fp8, x, operation) ? WriteFp8(fp8.values, fp8.scale) : Fp8Output{};
}

// Calls `launch(FactorShape, FactorMembers)` for every kFactorMembers members of a PlaceFactors.
template <typename Launch>
void ForFactorMembers(const FactorPlaces& places, at::TensorList a, at::TensorList b,
                      at::IntArrayRef first_row, const Launch& launch) {
  int64_t first_rank = 0;
  for (size_t first = 0; first < a.size(); first += kFactorMembers) {
    FactorMembers members;
    FactorShape shape{.rows = places.rows, .columns = places.columns, .first_rank = first_rank};
    for (size_t i = first; i < std::min(a.size(), first + kFactorMembers); ++i) {
      members.member[shape.members++] = {Read(a[i]), Read(b[i]), first_row[i], b[i].size(0),
                                         a[i].size(0)};
      first_rank += a[i].size(0);
    }
    launch(shape, members);
  }
}

}  // namespace sft::engine::cuda
