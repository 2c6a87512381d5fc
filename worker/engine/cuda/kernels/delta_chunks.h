// Launchers of the parts of the gated delta rule on tensor cores; see delta_tiles.cuh.
#pragma once

#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/linear_attention.h"

namespace sft::engine::cuda {

inline constexpr int kDeltaSlotTokens = 64;

// What kernels leave each other, [slots of the range, heads, ...] each. D: the size of heads.
struct DeltaSlots {
  __nv_bfloat16 *q = nullptr, *k = nullptr;  // [key heads, 64, D]: of length 1
  float* factors = nullptr;                  // [key heads, 2, 64]: what made q and k that
  __nv_bfloat16 *u = nullptr, *w = nullptr;  // [value heads, 64, D]
  __nv_bfloat16* p = nullptr;                // [value heads, 64, 64]: P, with 1 / sqrt(D)
  float* decays = nullptr;                   // [value heads, 2, 64]: exp(c), exp(c_last - c)
  // These are the backward's alone.
  __nv_bfloat16* inverse = nullptr;                     // [value heads, 64, 64]: (I + A)^-1
  __nv_bfloat16 *state = nullptr, *dstate = nullptr;    // [value heads, D, D]
  __nv_bfloat16 *values = nullptr, *dvalues = nullptr;  // [value heads, 64, D]: N and dN
};

// Slots [begin, end).
struct DeltaRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

// Fills q to inverse.
cudaError_t LaunchDeltaPrepare(const DeltaShape& shape, const DeltaOperands& operands,
                               const DeltaSlots& slots, DeltaRange range, cudaStream_t stream);
// Goes through the states of a range. That of the document that began before it is read from
// `before`, that of the one that goes on behind it written to `after`: fp32 [value heads, D, D],
// two different pieces of memory. The output goes to `out`; with out.data null there is none, and
// `state` and `values` of the slots are filled instead.
cudaError_t LaunchDeltaScan(const DeltaShape& shape, const DeltaSlots& slots, DeltaRange range,
                            const float* before, float* after, MutableRows out,
                            cudaStream_t stream);
// The same backwards, of gradients: reads `after`, writes `before`, fills dstate and dvalues.
cudaError_t LaunchDeltaScanBackward(const DeltaShape& shape, const DeltaSlots& slots,
                                    DeltaRange range, const float* after, float* before,
                                    ConstRows dout, cudaStream_t stream);
// The gradients of a range's tokens, of all that the slots hold.
cudaError_t LaunchDeltaGradients(const DeltaShape& shape, const DeltaOperands& operands,
                                 const DeltaGradients& gradients, const DeltaSlots& slots,
                                 DeltaRange range, cudaStream_t stream);

}  // namespace sft::engine::cuda
