#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "worker/engine/weights/layout.h"

// The parts of parameters that the ranks along the tensor axis have: an n-th of the rows of a
// linear that reads the residual stream, of its bias and of its adapter's B; an n-th of the columns
// of a linear that writes it and of its adapter's A; all else whole. Where there are fewer heads of
// keys than ranks, several ranks have the same rows. A part is held in row-major order.

namespace sft::engine {

// `whole` as rank `rank` of `ranks` has it: `own` has the same parameters in the shapes of a rank's
// parts (plan::ShapeOfTensorRank). Throws InternalError where a shape is no part of the whole.
ModelLayout CutOver(const ModelLayout& whole, const ModelLayout& own, int ranks, int rank);

// Consecutive elements of a rank's part, in the whole parameter: elements [first, first + count) of
// the matrix of its columns [column, column + columns), in row-major order; of all columns where
// the part is not cut along them.
struct CutRange {
  int64_t begin = 0;  // in the part
  int64_t count = 0;
  int64_t first = 0;
  int64_t column = 0, columns = 0;
  int64_t whole_columns = 0;

  bool is_flat() const { return columns == whole_columns; }
};
// Those of elements [first, first + count) of the part, in their order.
std::vector<CutRange> RangesOf(const ParamInfo& param, int64_t first, int64_t count);
// Of the whole parameter.
CutRange WholeRange(const ParamInfo& param);

// Elements [first, first + count) of the part, flat: `read` gives those of the whole parameter.
at::Tensor ReadPart(const ParamInfo& param, int64_t first, int64_t count,
                    const std::function<at::Tensor(int64_t first, int64_t count)>& read);

// The part of a whole parameter that this rank has; contiguous.
at::Tensor PartOf(const ParamInfo& param, const at::Tensor& whole);
// The whole, of the parts of all ranks in their order.
at::Tensor WholeOf(const ParamInfo& param, std::span<const at::Tensor> parts);

// Copies what elements of two ranges have in common from `from` to `to`, which hold those of their
// range, flat; returns how many they are.
int64_t CopyCommon(const CutRange& from_range, const at::Tensor& from, const CutRange& to_range,
                   const at::Tensor& to);

}  // namespace sft::engine
