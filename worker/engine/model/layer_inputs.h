#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/model/config.h"
#include "worker/engine/nn/norm.h"
#include "worker/engine/nn/pass.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// The inputs that layers have of their own, those of all layers side by side: the sum of a table's
// row for each token and of a normed projection of the token's embedding. Holds positions of
// parameters in the embedding's unit, no tensors. T tokens, H hidden size, L layers, P size of an
// input.
struct LayerInputs {
  int table = -1;  // -1: layers have no inputs of their own
  int projection = -1;
  Norm norm;
  int64_t size = 0;               // P
  double projection_scale = 1.0;  // multiplies the projection
  double table_scale = 1.0;       // multiplies the table's rows, rounded to their type
  int64_t pad_token = -1;         // whose row of the table is not trained; -1: none

  static LayerInputs Bind(const ModelConfig& config, const UnitInfo& embedding);

  explicit operator bool() const { return table >= 0; }

  // [T, L P] of tokens int64 [T] and their embeddings [T, H].
  at::Tensor Forward(const at::Tensor& tokens, const at::Tensor& embedded, const Pass& pass) const;
  // Adds the parameters' gradients, and that of `embedded` to dx, rows [T, H]. Overwrites dinputs
  // [T, L P].
  void Backward(at::Tensor dinputs, const at::Tensor& tokens, const at::Tensor& embedded,
                const Pass& pass, UnitGradients& gradients, at::Tensor& dx) const;

 private:
  // Rows [T L, P] of what is normed.
  at::Tensor Project(const at::Tensor& embedded, const Pass& pass) const;
};

}  // namespace sft::engine
