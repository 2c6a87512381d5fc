#include "worker/engine/nn/head_loss.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "common/base/round.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

namespace {

Tensor Logits(const Tensor& x, const Tensor& weight, double scale) {
  // Rows start where products are fast, whatever the size of the vocabulary.
  constexpr int64_t kAligned = 8;
  const int64_t vocabulary = weight.size(0);
  Tensor logits =
      at::empty({x.size(0), RoundUp(vocabulary, kAligned)}, x.options()).narrow(1, 0, vocabulary);
  ops::Gemm(logits, x, weight.t(), scale, 0.0);
  return logits;
}

}  // namespace

Tensor HeadLoss::Forward(const Tensor& x, const Tensor& weight, const Tensor& targets) const {
  Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
  for (int64_t first = 0; first < x.size(0); first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, x.size(0) - first);
    Tensor logits = Logits(x.narrow(0, first, rows), weight, scale);
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
    Tensor logits = Logits(x_chunk, weight, scale);
    result.loss.add_(ops::CrossEntropy(logits, targets.narrow(0, first, rows), /*backward=*/true));
    if (dweight.defined()) ops::Gemm(dweight, logits.t(), x_chunk, scale, 1.0);
    if (need_dx) {
      Tensor dx = result.dx.narrow(0, first, rows);
      ops::Gemm(dx, logits, weight, scale, 0.0);
    }
  }
  return result;
}

}  // namespace sft::engine
