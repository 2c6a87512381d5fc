#pragma once

#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/launch.h"

// Launcher of GluFactorsBackward (worker/engine/kernels/ops.h), for bf16. launch.h's rules hold.

namespace sft::engine::cuda {

// Sizes of one call.
struct GluFactorsShape {
  int64_t tokens = 0;
  int64_t width = 0;  // of gate, of up and of their product
  int rank = 0;       // of each of the three adapters
};

// Inputs of one call; gate_up is overwritten by its gradient. Rows start on 16 bytes.
struct GluFactorsRows {
  __nv_bfloat16* gate_up = nullptr;  // [tokens, 2 width]
  int64_t gate_up_stride = 0;
  const __nv_bfloat16* dy = nullptr;  // [tokens, width]
  int64_t dy_stride = 0;
  const __nv_bfloat16* xa = nullptr;  // [tokens, 2 rank]
  int64_t xa_stride = 0;
  const __nv_bfloat16* dxa_down = nullptr;  // [tokens, rank]
  int64_t dxa_down_stride = 0;
  const __nv_bfloat16 *b_gate = nullptr, *b_up = nullptr;  // [width, rank], dense
};

// Dense; what is computed is added to them.
struct GluFactorsGradients {
  float *b_gate = nullptr, *b_up = nullptr;  // [width, rank]
  float* a_down = nullptr;                   // [rank, width]
};

// Sizes of the scratch memory for partial sums, in floats, and of the runs of
// tiles that blocks take.
struct GluFactorsSizes {
  int runs = 1;
  int64_t dxa = 0, gradients = 0;
};
// The scratch memory itself.
struct GluFactorsPartials {
  int runs = 1;
  float *dxa = nullptr, *gradients = nullptr;
};

// True if there is a kernel for these sizes.
bool HasGluFactors(int64_t width, int64_t rank);
GluFactorsSizes SizesOfGluFactors(const GluFactorsShape& shape, int multiprocessors);
// dxa [tokens, 2 rank], rows on 8 bytes.
cudaError_t LaunchGluFactorsBackward(const GluFactorsShape& shape, const GluFactorsRows& rows,
                                     const GluFactorsPartials& partials, plan::ActivationKind kind,
                                     float scale, const GluFactorsGradients& gradients,
                                     MutableRows dxa, cudaStream_t stream);

}  // namespace sft::engine::cuda
