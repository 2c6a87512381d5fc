#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "worker/engine/data/step_plan.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {

// Validation loss over all ranks.
struct ValidationResult {
  double loss = 0;  // mean over all targets, or over all rows of preferences
  int64_t tokens = 0;
  int64_t targets = 0;  // tokens that the mean is over; 0 for preferences
  std::optional<PreferenceReport> preference;
};

// What follows from the mean loss of a token: "val.perplexity", and "val.bits_per_byte" where the
// text of the targets has `bytes`. Values that are not finite are left out.
std::vector<ValidationMetric> MetricsOfLoss(const ValidationResult& result, int64_t bytes);

// The loss over every row of `plan` (StepPlan::ForValidation), forward only, the rows divided over
// the ranks. A collective; every rank gets the result. `alive` is called before each micro-batch.
ValidationResult Validate(TrainingModel& model, const StepPlan& plan, Communicator& comm,
                          const std::function<void()>& alive);

}  // namespace sft::engine
