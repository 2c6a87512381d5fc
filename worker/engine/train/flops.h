#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "worker/engine/model/config.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// Floating-point operations: of products with weights, and of attention.
struct Flops {
  double products = 0;
  double attention = 0;

  double total() const { return products + attention; }
  // What each of `ranks` does that share them.
  Flops Over(int ranks) const { return {products / ranks, attention / ranks}; }
  Flops& operator+=(const Flops& other) {
    products += other.products;
    attention += other.attention;
    return *this;
  }
};

// Operations a second that a device was measured to reach with the shapes of a job; 0: not known.
struct Ceiling {
  double products = 0;
  double attention = 0;

  // The least time for `flops`; 0 where the rates are not known.
  double SecondsFor(const Flops& flops) const {
    if (products <= 0 || attention <= 0) return 0;
    return flops.products / products + flops.attention / attention;
  }
};

// Floating-point operations that a training step needs, recomputation not counted: for N weights of
// matrix products 2N a token forward, 2N for the gradient of its input (above the first trained
// unit), 2N for the gradient of a trained weight; attention at the real lengths of the documents.
// Of a layer's experts and their adapters those count that a token goes to. The head runs over the
// targets only.
class StepFlops {
 public:
  StepFlops(const ModelConfig& config, const ModelLayout& layout);

  // Operations of a micro-batch with these documents and targets.
  Flops Of(std::span<const int64_t> lengths, int64_t targets) const;

 private:
  double per_token_ = 0;
  double per_target_ = 0;
  // By layer: its window, and the operations for one query and one key that it sees.
  std::vector<std::pair<int64_t, double>> windows_;
};

}  // namespace sft::engine
