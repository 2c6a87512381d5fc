#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "worker/engine/data/step_plan.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {

// Validation loss over all ranks.
struct ValidationResult {
  double loss = 0;  // mean over all targets, or over all rows of preferences
  int64_t tokens = 0;
  std::optional<PreferenceReport> preference;
};

// The loss over every row of `plan` (StepPlan::ForValidation), forward only, the rows divided over
// the ranks. A collective; every rank gets the result. `alive` is called before each micro-batch.
ValidationResult Validate(TrainingModel& model, const StepPlan& plan, Communicator& comm,
                          const std::function<void()>& alive);

}  // namespace sft::engine
