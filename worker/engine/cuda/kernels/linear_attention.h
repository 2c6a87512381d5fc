// Launchers of what linear attention has: ShortConv, GatedDelta, GatedRmsNorm, ShortConvNext and
// GatedDeltaNext of worker/engine/kernels/operations.def. See launch.h for what all launchers keep
// to.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/launch.h"

namespace sft::engine::cuda {

// The documents of a micro-batch, document i being tokens [cu_seqlens[i], cu_seqlens[i + 1]).
struct DocumentList {
  const int32_t* cu_seqlens = nullptr;
  int32_t documents = 0;
  int64_t longest = 0;  // tokens
};

// ---- ShortConv ----

// weight [width, 4], dense, of weight_type.
cudaError_t LaunchShortConv(ElementType type, RowsShape shape, DocumentList documents, ConstRows x,
                            ElementType weight_type, const void* weight, MutableRows out,
                            cudaStream_t stream);
// Rows of the scratch matrix [ShortConvPartials, 4 width] of floats that the next launch uses.
int64_t ShortConvPartials(RowsShape shape);
// `partials` null: no gradient of the weight, which goes to `dweight` [width, 4] else.
cudaError_t LaunchShortConvBackward(ElementType type, RowsShape shape, DocumentList documents,
                                    ConstRows dy, ConstRows x, ElementType weight_type,
                                    const void* weight, MutableRows dx, float* partials,
                                    float* dweight, cudaStream_t stream);

// ---- GatedRmsNorm ----

// Rows are tokens.
struct GatedNormShape {
  int64_t tokens = 0;
  int32_t heads = 0;
  int32_t size = 0;  // at most kMostGatedNormSize
};
inline constexpr int kMostGatedNormSize = 512;

cudaError_t LaunchGatedRmsNorm(ElementType type, GatedNormShape shape, ConstRows x, ConstRows gate,
                               const float* weight, float epsilon, MutableRows y, float* rstd,
                               cudaStream_t stream);
// Rows of the scratch matrix [GatedNormPartials, size] of floats that the next launch uses.
int64_t GatedNormPartials(ElementType type, GatedNormShape shape);
// `partials` null: no gradient of the weight. dx may be dy.
cudaError_t LaunchGatedRmsNormBackward(ElementType type, GatedNormShape shape, ConstRows dy,
                                       ConstRows x, ConstRows gate, const float* weight,
                                       const float* rstd, MutableRows dx, MutableRows dgate,
                                       float* partials, float* dweight, cudaStream_t stream);

// ---- GatedDelta ----

// A batch of documents for the gated delta rule.
struct DeltaShape {
  int64_t tokens = 0;
  int32_t key_heads = 0, value_heads = 0;
  int32_t key_size = 0, value_size = 0;
  DocumentList documents;

  int32_t repeats() const { return value_heads / key_heads; }
};
inline constexpr int kMostDeltaSize = 256;  // of a head

// Rows are tokens, heads are dense within them.
struct DeltaOperands {
  ConstRows q, k, v;
  const float *g = nullptr, *beta = nullptr;  // [tokens, value_heads]
};
// What the backward reads and writes beside the operands.
struct DeltaGradients {
  ConstRows dout;
  MutableRows dq, dk, dv;
  float *dg = nullptr, *dbeta = nullptr;
};

// On tensor cores: bf16 heads of one size for keys and values, 64 or 128, all rows aligned to 16
// bytes.
bool HasDeltaChunks(ElementType type, const DeltaShape& shape, const DeltaOperands& operands,
                    MutableRows out);
bool HasDeltaChunks(ElementType type, const DeltaShape& shape, const DeltaOperands& operands,
                    const DeltaGradients& gradients);
// The chunks of a batch are taken in `ranges`, of which each needs the workspace that it has to
// itself: of about `most_bytes` or that of a few chunks. Results do not depend on it.
struct DeltaPlan {
  bool backward = false;
  int64_t ranges = 0;
  int64_t slots = 0;  // of a range
  int64_t bytes = 0;  // of the workspace, which is aligned to 16 bytes
};
DeltaPlan PlanDelta(const DeltaShape& shape, bool backward, int64_t most_bytes);
cudaError_t LaunchDeltaChunks(const DeltaShape& shape, const DeltaOperands& operands,
                              MutableRows out, const DeltaPlan& plan, void* workspace,
                              cudaStream_t stream);
cudaError_t LaunchDeltaChunksBackward(const DeltaShape& shape, const DeltaOperands& operands,
                                      const DeltaGradients& gradients, const DeltaPlan& plan,
                                      void* workspace, cudaStream_t stream);

// Without tensor cores: any heads up to kMostDeltaSize, of either type. A block takes a document
// and a key head at a time; `blocks` of them have DeltaPlainFloats floats of `workspace` each.
int64_t DeltaPlainFloats(const DeltaShape& shape, bool backward);
cudaError_t LaunchDeltaPlain(ElementType type, const DeltaShape& shape,
                             const DeltaOperands& operands, MutableRows out, float* workspace,
                             int64_t blocks, cudaStream_t stream);
cudaError_t LaunchDeltaPlainBackward(ElementType type, const DeltaShape& shape,
                                     const DeltaOperands& operands, const DeltaGradients& gradients,
                                     float* workspace, int64_t blocks, cudaStream_t stream);

// ---- ShortConvNext and GatedDeltaNext ----

// ops::Pieces: of each the first row, its rows and its state, -1 where its rows are padding.
struct PieceList {
  const int64_t *first = nullptr, *rows = nullptr, *states = nullptr;
  int32_t pieces = 0;
};

// weight as LaunchShortConv's; before [states, 3, width] of `type`, dense.
cudaError_t LaunchShortConvNext(ElementType type, RowsShape shape, PieceList pieces, ConstRows x,
                                ElementType weight_type, const void* weight, void* before,
                                MutableRows out, cudaStream_t stream);

// Heads and pieces of GatedDeltaNext.
struct DeltaNextShape {
  int32_t key_heads = 0, value_heads = 0;
  int32_t key_size = 0, value_size = 0;  // at most kMostDeltaSize
  PieceList pieces;
};
// states [states, value_heads, key_size, value_size], dense.
cudaError_t LaunchDeltaNext(ElementType type, const DeltaNextShape& shape,
                            const DeltaOperands& operands, float* states, MutableRows out,
                            cudaStream_t stream);

}  // namespace sft::engine::cuda
