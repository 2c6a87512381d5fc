#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/engine/data/dataset.h"
#include "worker/engine/generate/generator.h"

namespace sft::engine {

// Rows on which models are compared: their tokens, and which of them carry loss.
struct ComparedRows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<uint8_t>> loss;

  int64_t size() const;  // tokens
};

// The first documents of a data set, with at most so many tokens; the last is cut.
ComparedRows RowsToCompare(const Dataset& dataset, int64_t tokens);

// How the logits of a model differ from those of another on the same rows.
struct LogitDifference {
  int64_t tokens = 0;
  double largest = 0, mean = 0;  // |difference| of a logit
  double agreement = 0;          // share of tokens after which both find the same token likeliest
  // Mean cross entropy of the tokens with loss, of the other model and of this one.
  double loss_before = 0, loss_after = 0;

  double loss_difference() const { return loss_after - loss_before; }
};

// Logits of all rows, fp32 in host memory, one tensor [T, V] a row. One model is open at a time.
// `on_row` is called before each row, and what it throws ends the work.
std::vector<at::Tensor> LogitsOfRows(const GeneratorOptions& model, const ComparedRows& rows,
                                     const std::function<void()>& on_row = nullptr);

// `before` and `after`: what LogitsOfRows gave. Throws UserError where logits are not finite.
LogitDifference CompareLogits(const ComparedRows& rows, const std::vector<at::Tensor>& before,
                              const std::vector<at::Tensor>& after);

}  // namespace sft::engine
