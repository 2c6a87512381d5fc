#include <ATen/Parallel.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;

// lse - logits[target] of the rows that count.
Tensor LossOfRows(const Tensor& logits, const Tensor& targets, const Tensor& lse) {
  Tensor losses = at::zeros({logits.size(0)}, logits.options().dtype(at::kDouble));
  double* loss = losses.mutable_data_ptr<double>();
  const float* row = logits.const_data_ptr<float>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const float* sums = lse.const_data_ptr<float>();
  const int64_t vocabulary = logits.size(1);
  for (int64_t i = 0; i < logits.size(0); ++i, row += vocabulary) {
    if (target[i] < 0) continue;
    TORCH_CHECK(target[i] < vocabulary, "CrossEntropy: target ", target[i],
                " is outside the vocabulary of ", vocabulary);
    loss[i] = static_cast<double>(sums[i]) - static_cast<double>(row[target[i]]);
  }
  return losses;
}

// softmax -> softmax - onehot; rows that count nothing become zero.
template <typename T>
void SubtractTargets(Tensor& softmax, const Tensor& targets) {
  T* row = softmax.mutable_data_ptr<T>();
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const int64_t vocabulary = softmax.size(1);
  for (int64_t i = 0; i < softmax.size(0); ++i, row += vocabulary) {
    if (target[i] < 0) {
      std::fill(row, row + vocabulary, static_cast<T>(0.0f));
    } else {
      row[target[i]] = static_cast<T>(static_cast<float>(row[target[i]]) - 1.0f);
    }
  }
}

}  // namespace

Tensor RowCrossEntropy(Tensor& logits, const Tensor& targets, bool backward) {
  TORCH_CHECK(logits.dim() == 2 && targets.numel() == logits.size(0), "CrossEntropy: logits ",
              logits.sizes(), " for ", targets.numel(), " targets");
  CheckRows(logits, logits.size(0), logits.size(1), logits, "CrossEntropy: logits");
  TORCH_CHECK(targets.scalar_type() == at::kLong && targets.is_contiguous(),
              "CrossEntropy: targets must be contiguous int64");
  const bool is_float = logits.scalar_type() == at::kFloat;
  TORCH_CHECK(is_float || logits.scalar_type() == at::kBFloat16,
              "CrossEntropy: logits must be fp32 or bf16");
  const bool in_place = is_float && logits.is_contiguous();
  Tensor work = in_place ? logits : logits.to(at::kFloat).contiguous();
  Tensor lse = at::logsumexp(work, {1}, /*keepdim=*/true);
  Tensor losses = LossOfRows(work, targets, lse);
  if (backward) {
    work.sub_(lse).exp_();
    SubtractTargets<float>(work, targets);
    if (!in_place) logits.copy_(work);
  }
  return losses;
}

// In double and in the rows' order: the same bits whatever the threads.
Tensor CrossEntropy(Tensor& logits, const Tensor& targets, bool backward) {
  const Tensor losses = RowCrossEntropy(logits, targets, backward);
  const double* loss = losses.const_data_ptr<double>();
  return at::scalar_tensor(std::accumulate(loss, loss + losses.numel(), 0.0), at::kFloat);
}

}  // namespace sft::engine::cpu
