#include "worker/engine/train/validation.h"

#include <ATen/ops/zeros.h>

namespace sft::engine {

ValidationResult Validate(TrainingModel& model, const StepPlan& plan, Communicator& comm,
                          const std::function<void()>& alive) {
  const Step step = plan.GetStep(0);
  at::Tensor loss = at::zeros({}, at::TensorOptions(comm.device()).dtype(at::kDouble));
  for (int micro = 0; micro < step.micro_batches; ++micro) {
    alive();
    loss.add_(model.Loss(plan.GetMicroBatch(step, micro, comm.rank())));
  }
  const double sum = AllReduceSumDouble(comm, loss.item<double>());
  return {sum / static_cast<double>(step.loss_tokens), step.tokens};
}

}  // namespace sft::engine
