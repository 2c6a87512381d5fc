#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/engine/nn/row_objective.h"

namespace sft::engine {

// The head and the loss in one pass over chunks of rows: the logits of a chunk are made once,
// become the loss and, in place, their own gradient, and are gone before the next chunk. Rows are
// those that carry loss. Everything is a sum, not a mean.
struct HeadLoss {
  int64_t chunk_rows = 0;  // > 0
  double scale = 1.0;      // multiplies the logits
  double cap = 0.0;        // they become cap * tanh(. / cap); 0: they stay

  // Sum of the cross entropies (fp64 scalar) of the logits of x [N, H], capped scale * x W^T,
  // against targets int64 [N].
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& targets) const;

  // The same, of each row: fp64 [N].
  at::Tensor ForwardRows(const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& targets) const;

  // Scales and caps x W^T [N, V] in place.
  void Finish(at::Tensor& logits) const;

  struct Gradients {
    at::Tensor loss;  // as Forward, or RowObjective's sums
    at::Tensor dx;    // [N, H]; undefined unless asked for
  };
  // `dweight` (fp32 [V, H], may be undefined) is added to.
  Gradients ForwardBackward(const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& targets, at::Tensor dweight, bool need_dx) const;

  // The same for a loss that `objective` makes of the cross entropies of the rows. The gradient of
  // x is that of the sum, scaled row by row once the weights are known; a trained head has its
  // logits made twice, since its own gradient needs the weights first.
  Gradients ForwardBackwardRows(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets, at::Tensor dweight, bool need_dx,
                                const RowObjective& objective) const;

 private:
  // ForwardBackward; `loss(first, logits, targets)` is given each chunk's logits, which it replaces
  // by their gradient. `factors` (fp32 [N], may be undefined) multiply the rows' parts of dweight.
  template <typename Loss>
  at::Tensor Run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                 at::Tensor dweight, bool need_dx, const at::Tensor& factors,
                 const Loss& loss) const;
};

}  // namespace sft::engine
