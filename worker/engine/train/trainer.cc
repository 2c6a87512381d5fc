#include "worker/engine/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "worker/engine/base/error.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/delivery.h"
#include "worker/engine/train/memory_stats.h"
#include "worker/engine/train/validation.h"

namespace sft::engine {

using at::Tensor;

namespace {

double Seconds(Nanos duration) { return std::chrono::duration<double>(duration).count(); }

// Rows named in a message about a value that is not finite.
constexpr size_t kRowsShown = 16;

std::optional<StepPlan> ValidationPlan(const TrainerOptions& options) {
  if (!options.spec.training.validation.enabled) return std::nullopt;
  if (options.validation == nullptr) {
    throw UserError("training.validation.enabled is set, but the job has no validation rows",
                    "bad_data", "give [data] val, or switch validation off");
  }
  return StepPlan::ForValidation(options.validation, StepPlanOptions::FromSpec(options.spec));
}

}  // namespace

double Trainer::StepLoss::total() const { return std::accumulate(ranks.begin(), ranks.end(), 0.0); }

Trainer::Trainer(TrainerOptions options, Communicator& comm, TrainObserver& observer, Clock& clock)
    : options_(std::move(options)),
      comm_(comm),
      observer_(observer),
      clock_(clock),
      model_(options_.spec, options_.model_dir, comm, options_.execution),
      plan_(options_.train, StepPlanOptions::FromSpec(options_.spec)),
      validation_(ValidationPlan(options_)),
      schedule_(options_.spec.hyperparameters.lr_scheduler,
                options_.spec.hyperparameters.learning_rate,
                options_.spec.hyperparameters.warmup_ratio, plan_.total_steps()),
      flops_(model_.config(), model_.layout()) {}

TrainResult Trainer::Run() {
  const at::NoGradGuard no_grad;
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  // Else LibTorch fills every new tensor: 5 % of a step, for memory that is always written to.
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  const ModelLayout& layout = model_.layout();
  observer_.OnReady(
      {plan_.total_steps(), layout.trainable_parameters(), layout.total_parameters()});
  if (validation_) Evaluate(0);
  last_report_ = clock_.Mono();
  int64_t taken = 0;
  while (taken < plan_.total_steps() && !stop_) {
    const Step step = plan_.GetStep(taken);
    RunStep(step);
    ++taken;
    if (!stop_ && EvalDue(step)) {
      Evaluate(taken);
      last_report_ = clock_.Mono();
    }
  }
  if (!stop_) DeliverResult();
  return {taken, stop_};
}

void Trainer::RunStep(const Step& step) {
  observer_.OnPhase(TrainPhase::kStep, step.index + 1);
  StepLoss loss = ForwardBackward(step);
  observer_.OnPhase(TrainPhase::kOwnWorkDone, step.index + 1);
  ExchangeLoss(loss);
  if (!std::isfinite(loss.total())) FailNotFinite(step, loss, "loss");
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, step.loss_tokens));
  const double norm = model_.ReduceGradients(scale);
  if (!std::isfinite(norm)) FailNotFinite(step, loss, "gradient norm");
  const double lr = schedule_.At(step.index + 1);
  model_.Update(lr, scale * ClipFactor(norm, options_.spec.hyperparameters.max_grad_norm));
  const MonoTime now = clock_.Mono();
  Report(step, loss, norm, lr, Seconds(now - last_report_));
  last_report_ = now;
  stop_ = loss.stop;
  observer_.OnPhase(TrainPhase::kStepDone, step.index + 1);
}

Trainer::StepLoss Trainer::ForwardBackward(const Step& step) {
  model_.BeginStep();
  std::vector<Tensor> sums;
  step_flops_ = {};
  rank_targets_ = 0;
  for (int micro = 0; micro < step.micro_batches; ++micro) {
    const MicroBatch batch = plan_.GetMicroBatch(step, micro, comm_.rank());
    sums.push_back(
        model_.ForwardBackward(batch, step.index, micro, micro + 1 == step.micro_batches));
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < batch.documents(); ++i) {
      lengths.push_back(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
    }
    step_flops_ += flops_.Of(lengths, batch.loss_tokens());
    rank_targets_ += batch.loss_tokens();
  }
  // The only wait for the device before the update.
  const Tensor host = at::stack(sums).cpu();
  StepLoss loss;
  loss.micro.assign(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
  return loss;
}

// Every rank's sum and its wish to stop, so that all ranks decide alike.
void Trainer::ExchangeLoss(StepLoss& loss) {
  const double own = std::accumulate(loss.micro.begin(), loss.micro.end(), 0.0);
  const Tensor part =
      at::tensor({own, observer_.StopRequested() ? 1.0 : 0.0}, at::kDouble).to(comm_.device());
  Tensor all = at::empty({2 * comm_.world()}, part.options());
  comm_.AllGather(all, part);
  const Tensor host = all.cpu();
  const double* values = host.const_data_ptr<double>();
  for (int rank = 0; rank < comm_.world(); ++rank) {
    loss.ranks.push_back(values[2 * rank]);
    loss.stop = loss.stop || values[2 * rank + 1] != 0.0;
  }
}

void Trainer::FailNotFinite(const Step& step, const StepLoss& loss, const std::string& what) {
  const auto bad = [](double value) { return !std::isfinite(value); };
  const auto rank = std::find_if(loss.ranks.begin(), loss.ranks.end(), bad);
  std::string where = "on no rank alone: the sum over all is not finite";
  if (rank != loss.ranks.end()) {
    const int blamed = static_cast<int>(rank - loss.ranks.begin());
    // A rank knows the place within the step only for its own rows.
    const auto micro = std::find_if(loss.micro.begin(), loss.micro.end(), bad);
    const bool own = blamed == comm_.rank() && micro != loss.micro.end();
    std::vector<int64_t> lines;
    for (int m = 0; m < step.micro_batches; ++m) {
      if (own && m != micro - loss.micro.begin()) continue;
      for (int64_t line : plan_.RowLines(step, m, blamed)) lines.push_back(line);
    }
    const bool cut = lines.size() > kRowsShown;
    if (cut) lines.resize(kRowsShown);
    where = fmt::format("on rank {} in the rows of line {}{}", blamed, fmt::join(lines, ", "),
                        cut ? ", ..." : "");
  } else if (what == "gradient norm") {
    where = fmt::format("with a finite loss of {}",
                        loss.total() / static_cast<double>(step.loss_tokens));
  }
  throw UserError(fmt::format("the {} of step {} is not finite ({})", what, step.index + 1, where),
                  "nan_loss",
                  "lower learning_rate or raise warmup_ratio; if it happens at step 1, check the "
                  "named rows and "
                  "the model's weights");
}

void Trainer::Report(const Step& step, const StepLoss& loss, double grad_norm, double lr,
                     double seconds) {
  StepReport report;
  report.step = step.index + 1;
  report.total_steps = plan_.total_steps();
  const bool last = report.step == report.total_steps || loss.stop;
  if (report.step % options_.spec.hyperparameters.logging_steps != 0 && !last) return;
  report.loss = loss.total() / static_cast<double>(std::max<int64_t>(1, step.loss_tokens));
  if (rank_targets_ > 0) {
    report.rank_loss = loss.ranks[comm_.rank()] / static_cast<double>(rank_targets_);
  }
  report.grad_norm = grad_norm;
  report.lr = lr;
  report.epoch =
      static_cast<double>(step.position + step.samples) / static_cast<double>(plan_.samples());
  report.tokens = step.tokens;
  report.seconds = seconds;
  if (seconds > 0) {
    report.tokens_per_second = static_cast<double>(step.tokens) / seconds;
    if (options_.peak_flops > 0) report.mfu = step_flops_.total() / seconds / options_.peak_flops;
    report.of_limit = options_.ceiling.SecondsFor(step_flops_) / seconds;
  }
  report.memory_bytes = PeakMemoryBytes(comm_.device());
  observer_.OnStep(report);
}

bool Trainer::EvalDue(const Step& step) const {
  if (!validation_) return false;
  const auto& validation = options_.spec.training.validation;
  const int64_t taken = step.index + 1;
  if (taken == plan_.total_steps()) return true;
  switch (validation.strategy) {
    case spec::EvalStrategy::kSteps:
      return validation.eval_steps > 0 && taken % validation.eval_steps == 0;
    case spec::EvalStrategy::kEpoch:
      return taken % plan_.steps_per_epoch() == 0;
    case spec::EvalStrategy::kNo:
      break;
  }
  return false;
}

void Trainer::Evaluate(int64_t steps_taken) {
  observer_.OnPhase(TrainPhase::kValidation, steps_taken);
  const MonoTime start = clock_.Mono();
  const ValidationResult result = Validate(model_, *validation_, comm_);
  observer_.OnEval({steps_taken, result.loss, result.tokens, Seconds(clock_.Mono() - start)});
  if (steps_taken > 0) KeepIfBest(result.loss);
}

// Every rank has the same loss, so all keep the same step.
void Trainer::KeepIfBest(double loss) {
  const auto& validation = options_.spec.training.validation;
  if (!validation.save_best_model_at_end) return;
  const bool better =
      !best_loss_ || (validation.greater_is_better ? loss > *best_loss_ : loss < *best_loss_);
  if (!better) return;
  best_loss_ = loss;
  best_weights_ = model_.Snapshot();
}

void Trainer::DeliverResult() {
  observer_.OnPhase(TrainPhase::kDelivery, plan_.total_steps());
  if (!best_weights_.empty()) {
    model_.Restore(best_weights_);
    best_weights_.clear();
  }
  const DeliveryOptions delivery{options_.output_dir, options_.model_dir, options_.model_name};
  const DeliveryResult result = Deliver(model_, options_.spec, delivery, comm_);
  observer_.OnConsistency(result.consistency);
  if (!result.consistency.consistent) {
    throw InternalError(
        fmt::format("the trained weights differ: rank {} has {}, the artifact {}", comm_.rank(),
                    result.consistency.weights_sha256, result.consistency.delivered_sha256),
        "diverged", "report this with the job file; the artifact must not be used");
  }
  if (comm_.rank() == 0) observer_.OnArtifact(result.artifact);
}

}  // namespace sft::engine
