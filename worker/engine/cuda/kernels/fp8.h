// Launchers of FP8 (worker/engine/kernels/ops.h); launch.h says what all launchers have in common.
// Rows of float8 are rows of bytes.
#pragma once

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// Rows of FP8, each of `width` elements.
struct Fp8Shape {
  int64_t rows = 0;
  int64_t width = 0;
};
cudaError_t LaunchFp8Quantize(ElementType type, Fp8Shape shape, ConstRows x, const Fp8Output& out,
                              cudaStream_t stream);
cudaError_t LaunchFp8QuantizeWith(ElementType type, Fp8Shape shape, ConstRows x, const float* scale,
                                  MutableRows out, cudaStream_t stream);

// The transpose of x, whose `shape` is given: out.rows [shape.width, out_width], zero beyond column
// shape.rows, with one scale a column of x. The largest magnitudes of columns go through
// `partials`, a scratch matrix [Fp8ColumnPartials, shape.width] of floats.
int64_t Fp8ColumnPartials(Fp8Shape shape);
cudaError_t LaunchFp8QuantizeColumns(ElementType type, Fp8Shape shape, ConstRows x,
                                     int64_t out_width, float* partials, const Fp8Output& out,
                                     cudaStream_t stream);

// A weight [rows, columns] in NF4: with `absmax`, or with the three that follow it.
struct Nf4Weight {
  int64_t rows = 0;
  int64_t columns = 0;
  const uint8_t* codes = nullptr;
  const float* absmax = nullptr;
  const uint8_t* absmax_codes = nullptr;
  const float* nested_absmax = nullptr;
  const float* offset = nullptr;
};
// `out` [rows, columns], or [columns, rows] with `transposed`; one scale a row of it.
cudaError_t LaunchFp8FromNf4(const Nf4Weight& weight, const float* scale, bool transposed,
                             MutableRows out, cudaStream_t stream);

// Writes scale * b, with the zeros around it, beside the weight; with `transposed` the a^T beside
// the transposed weight. `shape` is that of the weight as it stands untransposed.
cudaError_t LaunchFp8PlaceFactors(ElementType type, FactorShape shape, const FactorMembers& members,
                                  float scale, const float* row_scale, bool transposed,
                                  MutableRows matrix, cudaStream_t stream);

}  // namespace sft::engine::cuda
