#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/engine/data/dataset.h"
#include "worker/engine/data/step_plan.h"

namespace sft::engine {

// Prompts with the answers of other rows, by which KTO estimates how far the model has moved: each
// row's prompt with the answer of the last row before it (around the end) that has another prompt.
// Which these are never changes, so their log-probabilities under the reference are computed once.
// Any thread may call.
class Mismatched {
 public:
  // A document has at most `length` tokens: what is more is cut from the start of the prompt.
  Mismatched(std::shared_ptr<const Dataset> dataset, int64_t length);

  // As `batch`, each document mismatched. An empty one stays empty.
  MicroBatch Of(const MicroBatch& batch) const;

 private:
  std::shared_ptr<const Dataset> dataset_;
  int64_t length_;
  std::vector<uint32_t> answers_;  // the row whose answer each row gets
};

}  // namespace sft::engine
