#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "worker/engine/cuda/kernels/launch.h"
#include "worker/engine/kernels/rows.h"

// Tensors as the launchers take them.

namespace sft::engine::cuda {

inline ConstRows Read(const at::Tensor& x) { return {x.const_data_ptr(), x.stride(0)}; }
inline MutableRows Write(at::Tensor& x) { return {x.mutable_data_ptr(), x.stride(0)}; }

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
