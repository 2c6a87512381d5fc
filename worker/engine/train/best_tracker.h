#pragma once

#include <cstdint>
#include <optional>

#include "common/spec/job_spec.h"

namespace sft::engine {

// Tracks the best validation so far and decides when to stop early, by the rules of
// transformers' load_best_model_at_end and EarlyStoppingCallback. A plain value.
class BestTracker {
 public:
  explicit BestTracker(const spec::JobSpec::Training::Validation& options)
      : greater_(options.greater_is_better),
        patience_(options.early_stopping_patience),
        threshold_(options.early_stopping_threshold) {}

  // The metric after `step`. Returns whether it is the best so far. A step forward of no more than
  // the threshold is the best too, but does not count as one for the patience.
  bool Add(int64_t step, double metric);
  // True once the patience has run out.
  bool hopeless() const { return patience_ > 0 && without_gain_ >= patience_; }

  // No value before the first validation.
  std::optional<double> best() const { return best_; }
  int64_t best_step() const { return best_step_; }
  int64_t without_gain() const { return without_gain_; }
  void Restore(std::optional<double> best, int64_t best_step, int64_t without_gain);

 private:
  bool greater_;
  int64_t patience_;
  double threshold_;
  std::optional<double> best_;
  int64_t best_step_ = 0;
  int64_t without_gain_ = 0;  // validations in a row
};

}  // namespace sft::engine
