// Launchers of the CUDA kernels: plain pointers and sizes; .cu files compile without LibTorch.
//
// Every launcher only enqueues work on `stream` and returns the launch's error; nothing waits.
// Pointers are device pointers; the caller keeps them alive as its allocator's stream order asks.
// Arithmetic is fp32 whatever the element type; sums have one order that depends on the shapes
// alone (no atomics), so that equal inputs give equal bits on every run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/plan/layer_kinds.h"
#include "worker/engine/kernels/norm_form.h"

namespace sft::engine::cuda {

enum class ElementType { kFloat32, kBFloat16 };

// A matrix of dense rows that start every `stride` elements, to read.
struct ConstRows {
  const void* data = nullptr;
  int64_t stride = 0;
};
// A matrix of dense rows that start every `stride` elements, to write.
struct MutableRows {
  void* data = nullptr;
  int64_t stride = 0;
};

// NF4 as worker/engine/kernels/nf4_tables.h defines it; `codes` holds (n + 1) / 2 bytes. What is
// de-quantised goes to rows of `columns` elements (n for one dense piece), in row-major order.
cudaError_t LaunchNf4Quantize(ElementType type, const void* weight, int64_t n, uint8_t* codes,
                              float* absmax, cudaStream_t stream);
cudaError_t LaunchNf4Dequantize(ElementType type, const uint8_t* codes, const float* absmax,
                                int64_t n, MutableRows out, int64_t columns, cudaStream_t stream);

// MXFP4 as worker/engine/kernels/mxfp4_format.h defines it; `codes` and `out` aligned to 16 bytes.
cudaError_t LaunchMxfp4Dequantize(ElementType type, int64_t n, const uint8_t* codes,
                                  const uint8_t* scales, void* out, cudaStream_t stream);

// The second quantisation: n values minus *offset, in blocks of 256, to the signed 8-bit map.
cudaError_t LaunchAbsmaxQuantize(const float* absmax, int64_t n, const float* offset,
                                 uint8_t* codes, float* nested_absmax, cudaStream_t stream);
// As LaunchNf4Dequantize, each block's absmax being map[code] * nested_absmax + *offset.
cudaError_t LaunchNf4DequantizeNested(ElementType type, const uint8_t* codes,
                                      const uint8_t* absmax_codes, const float* nested_absmax,
                                      const float* offset, int64_t n, MutableRows out,
                                      int64_t columns, cudaStream_t stream);

// sum += part, or with `fresh` sum = part; n elements each.
cudaError_t LaunchAccumulate(ElementType type, int64_t n, const void* part, bool fresh, float* sum,
                             cudaStream_t stream);

// The members that one launch of PlaceFactors (worker/engine/kernels/ops.h) takes.
inline constexpr int kFactorMembers = 8;
// The factors of one adapted linear, and the rows of the weight that are its own.
struct FactorMember {
  ConstRows a;  // [rank, columns]
  ConstRows b;  // [rows, rank]
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t rank = 0;
};
// The weight that the factors stand beside, and how many members are in use.
struct FactorShape {
  int64_t rows = 0;        // of the weight
  int64_t columns = 0;     // of the weight
  int64_t first_rank = 0;  // rank of the members before these
  int members = 0;
};
// By value: the arguments of a launch.
struct FactorMembers {
  FactorMember member[kFactorMembers];
};
// Writes the a of these members below the weight, and scale * b, with the zeros around it, beside.
cudaError_t LaunchPlaceFactors(ElementType type, FactorShape shape, const FactorMembers& members,
                               float scale, MutableRows matrix, cudaStream_t stream);

// The rule for the scale of a row in FP8: its largest magnitude times `of_largest`, but at least
// `smallest`; 1 for a row of zeros.
struct Fp8Scaling {
  float of_largest = 0.0f;
  float smallest = 0.0f;
};
// Target of rows in FP8: bytes, and one scale a row. With `rows.data` null nothing is written.
struct Fp8Output {
  MutableRows rows;
  float* scale = nullptr;
  Fp8Scaling scaling;
};

// Rows to norm or to activate, each of `width` elements.
struct RowsShape {
  int64_t rows = 0;
  int64_t width = 0;
};
// What a norm is beside its weight.
struct NormScaling {
  float epsilon = 0.0f;
  NormForm form;
};
// y = the norm of x, rstd = 1 / sqrt(mean(x^2) + epsilon), one float a row; y to `fp8`, too. The
// rows of `residual`, which may be y, are added unless its data is null.
cudaError_t LaunchRmsNorm(ElementType type, RowsShape shape, ConstRows x, const void* weight,
                          NormScaling scaling, ConstRows residual, MutableRows y, float* rstd,
                          const Fp8Output& fp8, cudaStream_t stream);
// dx = the gradient of x, plus `residual` unless its data is null; dx may be dy or residual. dx to
// `fp8`, too.
cudaError_t LaunchRmsNormBackward(ElementType type, RowsShape shape, ConstRows dy, ConstRows x,
                                  const void* weight, const float* rstd, NormForm form,
                                  ConstRows residual, MutableRows dx, const Fp8Output& fp8,
                                  cudaStream_t stream);
// Rows of the scratch matrices [ColumnPartials, width] of floats through which columns are summed.
int64_t ColumnPartials(RowsShape shape);
// dweight[c] = sum over rows of dy * x * rstd, rounded as `form` says, in two passes through
// `partials`.
cudaError_t LaunchRmsNormWeightBackward(ElementType type, RowsShape shape, ConstRows dy,
                                        ConstRows x, const float* rstd, NormForm form,
                                        float* partials, float* dweight, cudaStream_t stream);

// LayerNorm and LayerNormBackward of worker/engine/kernels/ops.h; `statistics` [2, rows].
cudaError_t LaunchLayerNorm(ElementType type, RowsShape shape, ConstRows x, const void* weight,
                            const void* bias, float epsilon, MutableRows y, float* statistics,
                            cudaStream_t stream);
// Sums over the rows of a LayerNorm's backward, and the scratch matrix [LayerNormPartials, 3 width]
// that they go through. What is null is not wanted.
struct LayerNormSums {
  float* partials = nullptr;
  float* gradients = nullptr;  // [2, width]: of the weight, then of the bias
  float* columns = nullptr;    // [width]: of dx
};
int64_t LayerNormPartials(RowsShape shape);
cudaError_t LaunchLayerNormBackward(ElementType type, RowsShape shape, ConstRows dy, ConstRows x,
                                    const void* weight, const float* statistics, ConstRows residual,
                                    MutableRows dx, const LayerNormSums& sums, cudaStream_t stream);

// Heads of `size` elements, of which the first 2 * half are rotated, dense within a token; tokens
// start every token_stride elements.
struct RopeShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t size = 0;
  int64_t half = 0;  // of the part that is rotated
  int64_t token_stride = 0;
};
// Rotates each head's two halves in place by the angles in row `token` of cos and sin, [tokens,
// half]. `inverse` rotates back (the backward pass).
cudaError_t LaunchRope(ElementType type, RopeShape shape, void* x, const float* cos,
                       const float* sin, bool inverse, cudaStream_t stream);

// NormRope and NormRopeBackward of worker/engine/kernels/ops.h. Rows are tokens; `size` is at most
// NormRopeMaxHeadSize().
struct NormRopeShape {
  int64_t tokens = 0;
  int heads = 0;
  int kv_heads = 0;
  int size = 0;
};
int64_t NormRopeMaxHeadSize();
cudaError_t LaunchNormRope(ElementType type, NormRopeShape shape, ConstRows qkv,
                           const void* q_weight, const void* k_weight, const float* cos,
                           const float* sin, NormScaling scaling, MutableRows q, MutableRows k,
                           cudaStream_t stream);
// Rows of the scratch matrix [NormRopeWeightPartials, 2 size] of floats that the next launch uses.
int64_t NormRopeWeightPartials();
// `partials` null: no weight gradients. Else `dweights` [2, size] gets q's, then k's.
cudaError_t LaunchNormRopeBackward(ElementType type, NormRopeShape shape, MutableRows dqkv,
                                   ConstRows qkv, const void* q_weight, const void* k_weight,
                                   const float* cos, const float* sin, NormScaling scaling,
                                   float* partials, float* dweights, cudaStream_t stream);

// out = act(gate) * up, act of `kind`, to `fp8`, too; gate_up and dgate_up, which may be one, hold
// `width` columns of gate and then as many of up, or pairs of them.
cudaError_t LaunchGlu(ElementType type, RowsShape shape, plan::ActivationKind kind,
                      ConstRows gate_up, MutableRows out, const Fp8Output& fp8,
                      cudaStream_t stream);
// y += bias [width] in each row.
cudaError_t LaunchAddBias(ElementType type, RowsShape shape, MutableRows y, const void* bias,
                          cudaStream_t stream);
// sums[c] = sum over rows of x, in two passes through `partials`.
cudaError_t LaunchColumnSumsOf(ElementType type, RowsShape shape, ConstRows x, float* partials,
                               float* sums, cudaStream_t stream);
// act(x), as LaunchGlu without `up`, of rows of `width` columns.
cudaError_t LaunchActivate(ElementType type, RowsShape shape, plan::ActivationKind kind,
                           ConstRows x, MutableRows out, cudaStream_t stream);
cudaError_t LaunchActivateBackward(ElementType type, RowsShape shape, plan::ActivationKind kind,
                                   ConstRows dy, ConstRows x, MutableRows dx, cudaStream_t stream);
cudaError_t LaunchGluBackward(ElementType type, RowsShape shape, plan::ActivationKind kind,
                              ConstRows dy, ConstRows gate_up, MutableRows dgate_up,
                              cudaStream_t stream);

// Heads of `size` elements, dense within a token; tokens start every token_stride elements.
struct SinkShape {
  int64_t tokens = 0;
  int heads = 0;
  int size = 0;
  int64_t token_stride = 0;
};
// out of head h and token t times sigmoid(lse[h, t] - sinks[h]): lse [heads, tokens], dense.
cudaError_t LaunchScaleBySinks(ElementType type, const SinkShape& shape, void* out,
                               const float* lse, const float* sinks, cudaStream_t stream);

// losses[r] = logsumexp(row r) - row r [targets[r]], 0 where the target is negative; with
// `backward` row r becomes softmax - onehot, zero where the target is negative. Rows are dense. A
// target beyond the vocabulary prints itself and stops the process's GPU work.
cudaError_t LaunchCrossEntropy(ElementType type, int64_t rows, int64_t vocabulary,
                               MutableRows logits, const int64_t* targets, bool backward,
                               float* losses, cudaStream_t stream);

}  // namespace sft::engine::cuda
