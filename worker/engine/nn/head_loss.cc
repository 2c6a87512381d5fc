#include "worker/engine/nn/head_loss.h"

#include <algorithm>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/linear.h"

namespace sft::engine {

using at::Tensor;

int64_t HeadLoss::ChunkRows(int64_t vocabulary, at::ScalarType type, int64_t bytes) {
  const int64_t row = vocabulary * static_cast<int64_t>(c10::elementSize(type));
  return std::max<int64_t>(64, bytes / row);
}

Tensor HeadLoss::Forward(const Tensor& x, const Tensor& weight, const Tensor& targets) const {
  Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
  for (int64_t first = 0; first < x.size(0); first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, x.size(0) - first);
    Tensor logits = at::mm(x.narrow(0, first, rows), weight.t());
    loss.add_(ops::CrossEntropy(logits, targets.narrow(0, first, rows), /*backward=*/false));
  }
  return loss;
}

HeadLoss::Gradients HeadLoss::ForwardBackward(const Tensor& x, const Tensor& weight,
                                              const Tensor& targets, Tensor dweight,
                                              bool need_dx) const {
  Gradients result{at::zeros({}, x.options().dtype(at::kDouble)), {}};
  if (need_dx) result.dx = at::empty_like(x);
  for (int64_t first = 0; first < x.size(0); first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, x.size(0) - first);
    const Tensor x_chunk = x.narrow(0, first, rows);
    Tensor logits = at::mm(x_chunk, weight.t());
    result.loss.add_(ops::CrossEntropy(logits, targets.narrow(0, first, rows), /*backward=*/true));
    if (dweight.defined()) AddOuterProduct(dweight, logits, x_chunk);
    if (need_dx) {
      Tensor dx = result.dx.narrow(0, first, rows);
      at::mm_out(dx, logits, weight);
    }
  }
  return result;
}

}  // namespace sft::engine
