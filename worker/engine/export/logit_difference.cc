#include "worker/engine/export/logit_difference.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>

#include "worker/engine/base/error.h"

namespace sft::engine {
namespace {

using at::Tensor;

// Tokens whose probabilities are worked out at once.
constexpr int64_t kRowsAtOnce = 256;

// Sum of the cross entropies of the tokens of a row that carry loss.
double LossOf(const std::vector<int32_t>& tokens, const std::vector<uint8_t>& loss,
              const Tensor& logits) {
  double sum = 0;
  for (int64_t first = 0; first < logits.size(0); first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, logits.size(0) - first);
    const Tensor chances = at::log_softmax(logits.narrow(0, first, count), 1);
    const auto value = chances.accessor<float, 2>();
    for (int64_t i = 0; i < count; ++i) {
      const auto next = static_cast<size_t>(first + i + 1);
      if (next < tokens.size() && loss[next] != 0) sum -= value[i][tokens[next]];
    }
  }
  return sum;
}

}  // namespace

int64_t ComparedRows::size() const {
  int64_t count = 0;
  for (const auto& row : tokens) count += static_cast<int64_t>(row.size());
  return count;
}

ComparedRows RowsToCompare(const Dataset& dataset, int64_t tokens) {
  ComparedRows rows;
  for (int64_t i = 0; i < dataset.size() && tokens > 0; ++i) {
    const Document document = dataset.Get(i);
    const auto count =
        static_cast<size_t>(std::min(tokens, static_cast<int64_t>(document.tokens.size())));
    rows.tokens.emplace_back(document.tokens.begin(), document.tokens.begin() + count);
    rows.loss.emplace_back(document.loss.begin(), document.loss.begin() + count);
    tokens -= static_cast<int64_t>(count);
  }
  return rows;
}

std::vector<Tensor> LogitsOfRows(const GeneratorOptions& model, const ComparedRows& rows,
                                 const std::function<void()>& on_row) {
  Generator generator(model);
  std::vector<Tensor> logits;
  for (const std::vector<int32_t>& row : rows.tokens) {
    if (on_row) on_row();
    logits.push_back(generator.Logits(row).to(at::kCPU, at::kFloat));
  }
  return logits;
}

LogitDifference CompareLogits(const ComparedRows& rows, const std::vector<Tensor>& before,
                              const std::vector<Tensor>& after) {
  const at::NoGradGuard no_grad;
  LogitDifference result;
  double sum = 0, values = 0, agreed = 0, targets = 0;
  for (size_t i = 0; i < rows.tokens.size(); ++i) {
    const Tensor difference = (after[i] - before[i]).abs_();
    result.largest = std::max(result.largest, difference.max().item<double>());
    sum += difference.sum(at::kDouble).item<double>();
    values += static_cast<double>(difference.numel());
    agreed += before[i].argmax(1).eq(after[i].argmax(1)).sum().item<double>();
    result.tokens += before[i].size(0);
    result.loss_before += LossOf(rows.tokens[i], rows.loss[i], before[i]);
    result.loss_after += LossOf(rows.tokens[i], rows.loss[i], after[i]);
    for (size_t t = 1; t < rows.loss[i].size(); ++t) targets += rows.loss[i][t];
  }
  result.mean = values > 0 ? sum / values : 0;
  result.agreement = result.tokens > 0 ? agreed / static_cast<double>(result.tokens) : 0;
  if (targets > 0) {
    result.loss_before /= targets;
    result.loss_after /= targets;
  }
  // std::max drops a NaN.
  if (std::isfinite(sum) && std::isfinite(result.loss_after)) return result;
  throw UserError("the logits are not finite", "bad_logits",
                  "export in a type with more room (export.type = \"f32\")");
}

}  // namespace sft::engine
