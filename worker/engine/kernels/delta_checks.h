#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <numeric>

#include "common/plan/attention_calls.h"
#include "worker/engine/kernels/op_types.h"
#include "worker/engine/kernels/rows.h"

// Checks and constants of the operations of linear attention (operations.def), for every device.

namespace sft::engine {

inline constexpr int64_t kShortConvWidth = 4;

// GatedDelta goes in chunks of so many tokens.
using plan::kDeltaChunk;
inline constexpr double kDeltaEpsilon = 1e-6;  // beside |q|^2 and |k|^2

// Throws unless the documents are those of `tokens` tokens.
inline void CheckDocuments(const ops::Documents& documents, int64_t tokens, const char* operation) {
  const at::IntArrayRef lengths = documents.lengths;
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  TORCH_CHECK(sum == tokens, operation, ": documents of ", sum, " tokens for ", tokens);
}

inline void CheckActivation(const at::Tensor& x, const char* operation) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, operation,
              ": activations must be fp32 or bf16, not ", x.scalar_type());
}

inline void CheckShortConv(const at::Tensor& x, const at::Tensor& weight,
                           const ops::Documents& documents, const char* operation) {
  TORCH_CHECK(x.dim() == 2, operation, ": x is ", x.sizes(), ", must be rows");
  CheckActivation(x, operation);
  CheckRows(x, x.size(0), x.size(1), x, operation);
  TORCH_CHECK(weight.dim() == 2 && weight.size(0) == x.size(1) &&
                  weight.size(1) == kShortConvWidth && weight.is_contiguous() &&
                  weight.device() == x.device() &&
                  (weight.scalar_type() == at::kFloat || weight.scalar_type() == x.scalar_type()),
              operation, ": weight is ", weight.scalar_type(), " ", weight.sizes(), ", must be [",
              x.size(1), ", ", kShortConvWidth, "], dense, fp32 or of x's type, beside x");
  CheckDocuments(documents, x.size(0), operation);
}

// Throws unless `x` is fp32 [tokens, heads], dense, beside `like`.
inline void CheckGates(const at::Tensor& x, int64_t tokens, int64_t heads, const at::Tensor& like,
                       const char* name) {
  TORCH_CHECK(x.dim() == 2 && x.size(0) == tokens && x.size(1) == heads && x.is_contiguous() &&
                  x.scalar_type() == at::kFloat && x.device() == like.device(),
              name, " is ", x.scalar_type(), " ", x.sizes(), ", must be fp32 [", tokens, ", ",
              heads, "], dense, beside q");
}

inline void CheckGatedDelta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& g, const at::Tensor& beta,
                            const ops::Documents& documents) {
  constexpr const char* kName = "GatedDelta";
  TORCH_CHECK(q.dim() == 3 && v.dim() == 3, kName, ": q is ", q.sizes(), ", v is ", v.sizes());
  CheckActivation(q, kName);
  const int64_t tokens = q.size(0);
  CheckHeads(q, tokens, q.size(2), q, "GatedDelta: q");
  CheckHeads(k, tokens, q.size(2), q, "GatedDelta: k");
  CheckHeads(v, tokens, v.size(2), q, "GatedDelta: v");
  TORCH_CHECK(k.size(1) == q.size(1) && q.size(1) > 0 && v.size(1) % q.size(1) == 0, kName, ": ",
              q.size(1), " heads of queries, ", k.size(1), " of keys, ", v.size(1), " of values");
  CheckGates(g, tokens, v.size(1), q, "GatedDelta: g");
  CheckGates(beta, tokens, v.size(1), q, "GatedDelta: beta");
  CheckDocuments(documents, tokens, kName);
}

// Throws unless `states` is dense and of `type`, each state of `shape`, and `pieces` are those of
// `like`'s rows, with a state each or none.
inline void CheckPieces(const ops::Pieces& pieces, const at::Tensor& states, at::IntArrayRef shape,
                        at::ScalarType type, const at::Tensor& like, const char* operation) {
  TORCH_CHECK(states.is_contiguous() && states.scalar_type() == type && states.dim() > 1 &&
                  states.sizes().slice(1) == shape && states.device() == like.device(),
              operation, ": states are ", states.scalar_type(), " ", states.sizes(), ", must be ",
              type, " [states, ", shape, "], dense, beside the rows");
  int64_t sum = 0;
  for (const int64_t length : pieces.lengths) sum += length;
  TORCH_CHECK(sum == like.size(0) && pieces.lengths.size() == pieces.states.size(), operation, ": ",
              pieces.states.size(), " pieces of ", sum, " tokens for ", like.size(0));
  for (const int64_t state : pieces.states) {
    TORCH_CHECK(state >= -1 && state < states.size(0), operation, ": there is no state ", state);
  }
}

// Throws unless `x` has the shape, type and device of `like`.
inline void CheckHeadsLike(const at::Tensor& x, const at::Tensor& like, const char* name) {
  CheckHeads(x, like.size(0), like.size(2), like, name);
  TORCH_CHECK(x.size(1) == like.size(1), name, " is ", x.sizes(), ", must be ", like.sizes());
}

inline void CheckGatedNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                           const char* operation) {
  TORCH_CHECK(x.dim() == 2, operation, ": x is ", x.sizes(), ", must be rows");
  CheckActivation(x, operation);
  CheckRows(x, x.size(0), x.size(1), x, operation);
  CheckRows(gate, x.size(0), x.size(1), x, operation);
  TORCH_CHECK(weight.is_contiguous() && weight.dim() == 1 && weight.numel() > 0 &&
                  x.size(1) % weight.numel() == 0 && weight.scalar_type() == at::kFloat &&
                  weight.device() == x.device(),
              operation, ": weight is ", weight.scalar_type(), " ", weight.sizes(),
              ", must be fp32, dense, beside x, of the size of a head of ", x.size(1), " columns");
}

}  // namespace sft::engine
