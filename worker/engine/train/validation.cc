#include "worker/engine/train/validation.h"

#include <cmath>

namespace sft::engine {

std::vector<ValidationMetric> MetricsOfLoss(const ValidationResult& result, int64_t bytes) {
  std::vector<ValidationMetric> metrics;
  const auto add = [&metrics](const char* name, double value) {
    if (std::isfinite(value)) metrics.push_back({name, value});
  };
  if (result.preference || result.targets == 0) return metrics;
  add("val.perplexity", std::exp(result.loss));
  if (bytes > 0) {
    add("val.bits_per_byte", result.loss * static_cast<double>(result.targets) /
                                 static_cast<double>(bytes) / std::log(2.0));
  }
  return metrics;
}

ValidationResult Validate(TrainingModel& model, const StepPlan& plan, Communicator& comm,
                          const std::function<void()>& alive) {
  const Step step = plan.GetStep(0);
  const at::Tensor loss = model.SumOfLosses(
      step.micro_batches,
      [&](int micro) { return plan.GetMicroBatch(step, micro, model.mesh().row_rank()); }, alive);
  const double sum = AllReduceSumDouble(comm, loss.item<double>());
  return {sum / static_cast<double>(step.loss_tokens), step.tokens, step.loss_tokens};
}

}  // namespace sft::engine
