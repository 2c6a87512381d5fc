#include "worker/engine/nn/head_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/round.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Products are fast where their sizes and rows are multiples of this.
constexpr int64_t kAligned = 8;

// A range of the vocabulary.
struct Part {
  int64_t first, count;
};

// The few entries behind the last multiple of kAligned, if there are any, then all others.
std::vector<Part> PartsOf(int64_t vocabulary) {
  const int64_t whole = vocabulary / kAligned * kAligned;
  if (whole == vocabulary || whole == 0) return {{0, vocabulary}};
  return {{whole, vocabulary - whole}, {0, whole}};
}

Tensor Logits(const Tensor& x, const Tensor& weight, double scale) {
  const int64_t vocabulary = weight.size(0);
  Tensor logits =
      at::empty({x.size(0), RoundUp(vocabulary, kAligned)}, x.options()).narrow(1, 0, vocabulary);
  for (const Part& part : PartsOf(vocabulary)) {
    Tensor to = logits.narrow(1, part.first, part.count);
    ops::Gemm(to, x, weight.narrow(0, part.first, part.count).t(), scale, 0.0);
  }
  return logits;
}

// Caps the logits in place.
void Cap(Tensor& logits, double cap) { logits.div_(cap).tanh_().mul_(cap); }

// The derivative of capped logits by those before: 1 - (y / cap)^2.
Tensor SlopeOfCap(const Tensor& capped, double cap) {
  return capped.div(cap).square_().neg_().add_(1.0);
}

}  // namespace

void HeadLoss::Finish(Tensor& logits) const {
  if (scale != 1.0) logits.mul_(scale);
  if (cap > 0.0) Cap(logits, cap);
}

Tensor HeadLoss::Forward(const Tensor& x, const Tensor& weight, const Tensor& targets) const {
  Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
  for (int64_t first = 0; first < x.size(0); first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, x.size(0) - first);
    Tensor logits = Logits(x.narrow(0, first, rows), weight, scale);
    if (cap > 0.0) Cap(logits, cap);
    loss.add_(ops::CrossEntropy(logits, targets.narrow(0, first, rows), /*backward=*/false));
  }
  return loss;
}

Tensor HeadLoss::ForwardRows(const Tensor& x, const Tensor& weight, const Tensor& targets) const {
  Tensor losses = at::zeros({x.size(0)}, x.options().dtype(at::kDouble));
  for (int64_t first = 0; first < x.size(0); first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, x.size(0) - first);
    Tensor logits = Logits(x.narrow(0, first, rows), weight, scale);
    if (cap > 0.0) Cap(logits, cap);
    losses.narrow(0, first, rows)
        .copy_(ops::RowCrossEntropy(logits, targets.narrow(0, first, rows), /*backward=*/false));
  }
  return losses;
}

template <typename Loss>
Tensor HeadLoss::Run(const Tensor& x, const Tensor& weight, const Tensor& targets, Tensor dweight,
                     bool need_dx, const Tensor& factors, const Loss& loss) const {
  Tensor result;
  if (need_dx) result = at::empty_like(x);
  for (int64_t first = 0; first < x.size(0); first += chunk_rows) {
    const int64_t rows = std::min(chunk_rows, x.size(0) - first);
    const Tensor x_chunk = x.narrow(0, first, rows);
    Tensor logits = Logits(x_chunk, weight, scale);
    Tensor slope;
    if (cap > 0.0) {
      Cap(logits, cap);
      slope = SlopeOfCap(logits, cap);
    }
    loss(first, logits, targets.narrow(0, first, rows));
    if (slope.defined()) logits.mul_(slope);
    slope = Tensor();
    Tensor weighted = x_chunk;
    if (dweight.defined() && factors.defined()) {
      weighted = (x_chunk * factors.narrow(0, first, rows).unsqueeze(1)).to(x.scalar_type());
    }
    double keep = 0.0;  // of dx, what the parts before have added
    for (const Part& part : PartsOf(weight.size(0))) {
      const Tensor dlogits = logits.narrow(1, part.first, part.count);
      if (dweight.defined()) {
        Tensor to = dweight.narrow(0, part.first, part.count);
        ops::Gemm(to, dlogits.t(), weighted, scale, 1.0);
      }
      if (!need_dx) continue;
      Tensor dx = result.narrow(0, first, rows);
      ops::Gemm(dx, dlogits, weight.narrow(0, part.first, part.count), scale, keep);
      keep = 1.0;
    }
  }
  return result;
}

HeadLoss::Gradients HeadLoss::ForwardBackward(const Tensor& x, const Tensor& weight,
                                              const Tensor& targets, Tensor dweight,
                                              bool need_dx) const {
  Gradients result{at::zeros({}, x.options().dtype(at::kDouble)), {}};
  result.dx = Run(x, weight, targets, std::move(dweight), need_dx, {},
                  [&result](int64_t, Tensor& logits, const Tensor& own) {
                    result.loss.add_(ops::CrossEntropy(logits, own, /*backward=*/true));
                  });
  return result;
}

HeadLoss::Gradients HeadLoss::ForwardBackwardRows(const Tensor& x, const Tensor& weight,
                                                  const Tensor& targets, Tensor dweight,
                                                  bool need_dx,
                                                  const RowObjective& objective) const {
  RowObjectiveResult made;
  Tensor losses,
      factors;  // the factors in fp32: in bf16 a sequence's would be off by half a percent
  if (dweight.defined()) {
    made = objective(ForwardRows(x, weight, targets));
    factors = made.weights.to(at::kFloat);
  } else {
    losses = at::zeros({x.size(0)}, x.options().dtype(at::kDouble));
  }
  Gradients result;
  result.dx = Run(x, weight, targets, dweight, need_dx, factors,
                  [&losses](int64_t first, Tensor& logits, const Tensor& own) {
                    const Tensor rows = ops::RowCrossEntropy(logits, own, /*backward=*/true);
                    if (losses.defined()) losses.narrow(0, first, rows.size(0)).copy_(rows);
                  });
  if (losses.defined()) made = objective(losses);
  result.loss = made.sums;
  if (result.dx.defined()) result.dx.mul_(made.weights.to(at::kFloat).unsqueeze(1));
  return result;
}

}  // namespace sft::engine
