// Rows of tokens and rows of their experts: copies from one to the other, and sums back. See
// launch.h for what all launchers keep to.
#pragma once

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// out[s] = x[of[s]], rows of `width` elements.
cudaError_t LaunchTakeRows(ElementType type, RowsShape shape, ConstRows x, const int64_t* of,
                           MutableRows out, cudaStream_t stream);

// y[t] = addend[t] + the sum over c of weights[t, c] * x[places[t, c]], added in the order of c in
// fp32: shape.rows is that of y. `weights` null: all are 1; addend.data null: none.
struct CombinedRows {
  const int64_t* places = nullptr;  // [rows, choices]
  const float* weights = nullptr;   // as places
  int choices = 0;
  ConstRows x;
  ConstRows addend;
  ElementType addend_type = ElementType::kFloat32;
};
cudaError_t LaunchCombineRows(ElementType type, RowsShape shape, const CombinedRows& of,
                              MutableRows y, cudaStream_t stream);

// With h = act(gate) * up: products[s] = the sum of dy[s] * h[s], and dgate_up as LaunchGluBackward
// has it of weights[s] * dy[s]; dgate_up to `fp8`, too, where WeighedGluWritesFp8 of the same rows.
cudaError_t LaunchWeighedGluBackward(ElementType type, RowsShape shape, plan::ActivationKind kind,
                                     ConstRows dy, ConstRows gate_up, const float* weights,
                                     MutableRows dgate_up, float* products, const Fp8Output& fp8,
                                     cudaStream_t stream);
bool WeighedGluWritesFp8(ElementType type, RowsShape shape, ConstRows dy, ConstRows gate_up,
                         ConstRows dgate_up, MutableRows fp8);

}  // namespace sft::engine::cuda
