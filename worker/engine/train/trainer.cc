#include "worker/engine/train/trainer.h"

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

#include "common/base/duration.h"
#include "worker/engine/base/error.h"
#include "worker/engine/base/phase_span.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/describe.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/delivery.h"
#include "worker/engine/train/memory_stats.h"
#include "worker/engine/train/stamp.h"
#include "worker/engine/train/validation.h"

namespace sft::engine {

using at::Tensor;

namespace {

// Rows named in a message about a value that is not finite.
constexpr size_t kRowsShown = 16;

bool HasExperts(const ModelLayout& layout) {
  return std::any_of(layout.units.begin(), layout.units.end(), [](const UnitInfo& unit) {
    return std::any_of(unit.params.begin(), unit.params.end(),
                       [](const ParamInfo& param) { return param.experts > 0; });
  });
}

std::optional<StepPlan> ValidationPlan(const TrainerOptions& options) {
  if (!options.spec.training.validation.enabled) return std::nullopt;
  if (options.validation == nullptr) {
    throw UserError("training.validation.enabled is set, but the job has no validation rows",
                    "bad_data", "give [data] val, or switch validation off");
  }
  return StepPlan::ForValidation(options.validation, StepPlanOptions::FromSpec(options.spec),
                                 options.train->stats().longest);
}

Stamp StampOf(const TrainerOptions& options, const StepPlan& plan, at::Device device) {
  const bool asked = !options.checkpoints.dir.empty() || !options.resume.dir.empty();
  if (!asked && !options.spec.prefers()) return {};
  return MakeStamp({.spec = options.spec,
                    .model_dir = options.model_dir,
                    .train = *options.train,
                    .validation = options.validation.get(),
                    .tokenizer = options.tokenizer,
                    .total_steps = plan.total_steps(),
                    .device = device});
}

std::optional<CheckpointLoader> MakeLoader(const TrainerOptions& options, const Stamp& stamp,
                                           Communicator& comm, Clock& clock) {
  if (options.resume.dir.empty()) return std::nullopt;
  return std::make_optional<CheckpointLoader>(options.resume, stamp, options.checkpoints, comm,
                                              clock);
}

}  // namespace

double Trainer::StepLoss::total() const { return std::accumulate(ranks.begin(), ranks.end(), 0.0); }

Trainer::Trainer(TrainerOptions options, Communicator& comm, TrainObserver& observer, Clock& clock)
    : options_(std::move(options)),
      comm_(comm),
      observer_(observer),
      clock_(clock),
      plan_(options_.train, StepPlanOptions::FromSpec(options_.spec)),
      validation_(ValidationPlan(options_)),
      stamp_(StampOf(options_, plan_, comm.device())),
      loader_(MakeLoader(options_, stamp_, comm, clock)),
      model_(options_.spec, options_.model_dir, comm, options_.execution),
      best_(options_.spec.training.validation),
      saver_(options_.checkpoints, options_.spec, stamp_, model_, comm, observer, clock),
      schedule_(options_.spec.hyperparameters.lr_scheduler,
                options_.spec.hyperparameters.learning_rate,
                options_.spec.hyperparameters.warmup_ratio, plan_.total_steps()),
      flops_(model_.config(), model_.layout()),
      probe_(MakeProbe(*options_.train)) {
  // The reference of preferences is the model as it is before training.
  if (!options_.adapter_dir.empty() && (!loader_ || options_.spec.prefers())) StartFromAdapter();
  if (options_.spec.prefers()) PreparePreferences();
  if (loader_) Resume();
}

void Trainer::StartFromAdapter() {
  const Adapter given = ReadAdapter(options_.adapter_dir, model_.layout().prefix());
  const Adapter fitted = FitAdapter(given, model_.layout(), options_.spec);
  model_.LoadAdapter(fitted);
  if (comm_.rank() != 0) return;
  double square = 0;
  for (const LoraPair& pair : fitted.pairs) square += pair.b.square().sum().item<double>();
  observer_.OnMessage(fmt::format(
      "starts from the adapter of {} of {} modules, r {} of {}, |B| {:.4g}", given.pairs.size(),
      fitted.pairs.size(), given.config.r, fitted.config.r, std::sqrt(square)));
}

// Before a checkpoint is restored: the reference is the model as it is before training.
void Trainer::PreparePreferences() {
  const at::NoGradGuard no_grad;
  ops::SetDeterministic(options_.spec.training.deterministic);
  preference_.emplace(
      PreferenceTraining::Options{.spec = options_.spec,
                                  .train = options_.train,
                                  .validation = validation_ ? options_.validation : nullptr,
                                  .adapter_dir = options_.adapter_dir,
                                  .cache_dir = options_.cache_dir,
                                  .writes_cache = comm_.rank() == options_.checkpoints.first_rank,
                                  .stamp = stamp_,
                                  .plan = plan_},
      model_, comm_, observer_);
}

void Trainer::Resume() {
  best_weights_ = loader_->Restore(model_);
  const Manifest& manifest = loader_->manifest();
  taken_ = manifest.step;
  best_.Restore(manifest.best_metric, manifest.best_step, manifest.validations_without_gain);
  const bool keeps_best = options_.spec.training.validation.save_best_model_at_end;
  if (!keeps_best) best_weights_.clear();
  if (keeps_best && best_.best_step() == taken_ && best_.best()) best_weights_ = model_.Snapshot();
}

// Says what is trained and what is not, and proves that packed documents stay apart.
void Trainer::CheckBeforeTraining() {
  if (comm_.rank() == 0) {
    for (const std::string& line : DescribeTraining(model_.layout(), options_.spec)) {
      observer_.OnMessage(line);
    }
    // Only a model with a prefix has parts beside the decoder: the files need no second look.
    if (!model_.layout().prefix().empty()) {
      const std::string others =
          DescribeOtherParts(ModelFiles::Open(options_.model_dir).Names(), model_.layout());
      if (!others.empty()) observer_.OnMessage(others);
    }
  }
  const auto logits = [this](const MicroBatch& batch, const std::vector<int64_t>& tokens) {
    return model_.Logits(batch, tokens);
  };
  const bool has_experts = HasExperts(model_.layout());
  const MonoTime begin = clock_.Mono();
  packing_difference_ = CheckPacking(logits, probe_, has_experts);
  // A CPU has one attention, whatever the length of a document.
  const bool gpu = comm_.device().is_cuda();
  const std::optional<ProbeDocuments> longer = gpu ? MakeLongProbe(*options_.train) : std::nullopt;
  if (longer) {
    packing_difference_ = std::max(packing_difference_, CheckPacking(logits, *longer, has_experts));
  }
  packing_seconds_ = SecondsOf(clock_.Mono() - begin);
  if (comm_.rank() == 0) {
    observer_.OnMessage(
        fmt::format("two {} packed documents stay apart; alone, the second's logits differ by "
                    "at most {:.2g} of the largest",
                    longer ? "short and two longer" : "short", packing_difference_));
  }
}

TrainResult Trainer::Run() {
  const at::NoGradGuard no_grad;
  ops::SetDeterministic(options_.spec.training.deterministic);
  CheckBeforeTraining();
  const ModelLayout& layout = model_.layout();
  observer_.OnReady(
      {plan_.total_steps(), layout.trainable_parameters(), layout.total_parameters()});
  if (loader_) {
    observer_.OnResumed({.step = taken_,
                         .path = loader_->dir().string(),
                         .changes = loader_->changes(),
                         .verify_seconds = loader_->verify_seconds(),
                         .restore_seconds = loader_->restore_seconds()});
    loader_.reset();
  } else if (validation_) {
    Evaluate(0);
  }
  last_report_ = clock_.Mono();
  while (taken_ < plan_.total_steps() && !stop_ && !best_.hopeless()) {
    const Step step = plan_.GetStep(taken_);
    RunStep(step);
    ++taken_;
    std::optional<double> metric;
    bool best = false;
    if (!stop_ && EvalDue(step)) {
      metric = Evaluate(taken_);
      best = metric && KeepIfBest(taken_, *metric);
      last_report_ = clock_.Mono();
    }
    SaveAfter(step, metric, best);
  }
  if (stop_) return {taken_, true};
  saver_.Finish();
  DeliverResult();
  return {taken_, false};
}

void Trainer::SaveAfter(const Step& step, const std::optional<double>& metric, bool best) {
  const bool last = taken_ == plan_.total_steps() || best_.hopeless();
  const CheckpointSaver::Moment moment{.step = taken_,
                                       .epoch = EpochAfter(step),
                                       .samples = step.position + step.samples,
                                       .ends_epoch = taken_ % plan_.steps_per_epoch() == 0,
                                       .last = last,
                                       .metric = metric,
                                       .best = best};
  stop_ ? saver_.Stop(moment, best_, best_weights_)
        : saver_.AfterStep(moment, best_, best_weights_);
}

void Trainer::RunStep(const Step& step) {
  observer_.OnPhase(TrainPhase::kStep, step.index + 1);
  ComputeStep(step);
  observer_.OnPhase(TrainPhase::kStepDone, step.index + 1);
}

void Trainer::ComputeStep(const Step& step) {
  const PhaseSpan span(kStepSpan, step.index + 1);
  StepLoss loss = ForwardBackward(step);
  observer_.OnPhase(TrainPhase::kOwnWorkDone, step.index + 1);
  ExchangeLoss(loss);
  if (!std::isfinite(loss.total())) FailNotFinite(step, loss, "loss");
  const double scale = 1.0 / DivisorOf(step);
  const double norm = model_.ReduceGradients(scale);
  if (!std::isfinite(norm)) FailNotFinite(step, loss, "gradient norm");
  const double lr = schedule_.At(step.index + 1);
  saver_.OnFlags(loss.flags);
  saver_.BeforeUpdate();
  model_.Update(lr, scale * ClipFactor(norm, options_.spec.hyperparameters.max_grad_norm));
  const MonoTime now = clock_.Mono();
  Report(step, loss, norm, lr, SecondsOf(now - last_report_));
  last_report_ = now;
  stop_ = loss.stop;
}

void Trainer::Count(const MicroBatch& batch, StepLoss* loss) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < batch.documents(); ++i) {
    lengths.push_back(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
  }
  const Mesh& mesh = model_.mesh();
  step_flops_ += flops_.Of(lengths, batch.loss_tokens())
                     .Over(mesh.Size(Axis::kContext) * mesh.Size(Axis::kTensor));
  // A loss of its own has a rank that has whole rows, and their logits.
  const bool last_stage = mesh.Coordinate(Axis::kPipeline) + 1 == mesh.Size(Axis::kPipeline);
  const bool whole_rows = mesh.Size(Axis::kContext) * mesh.Size(Axis::kTensor) == 1;
  if (whole_rows && last_stage) loss->targets += TargetsOf(batch);
}

Trainer::StepLoss Trainer::ForwardBackward(const Step& step) {
  model_.BeginStep();
  StepLoss loss;
  PreferenceScale scale;
  if (preference_) scale = preference_->ScaleOf(plan_, step);
  loss.kl = scale.kl;
  step_flops_ = {};
  std::vector<char> counted(static_cast<size_t>(step.micro_batches), 0);
  const auto batch_of = [&](int micro) {
    const PhaseSpan span(kDataSpan, micro + 1);
    MicroBatch batch = plan_.GetMicroBatch(step, micro, model_.mesh().row_rank());
    // Each piece of a stage asks for it.
    if (std::exchange(counted[static_cast<size_t>(micro)], 1) == 0) Count(batch, &loss);
    return batch;
  };
  TrainingModel::ObjectiveOf objective_of;
  if (preference_) {
    objective_of = [&](const MicroBatch& batch) { return preference_->ObjectiveOf(batch, scale); };
  }
  const std::vector<Tensor> sums =
      model_.RunMicroBatches(step.micro_batches, step.index, batch_of, objective_of);
  // The only wait for the device before the update.
  const PhaseSpan span("losses to the host");
  const Tensor host = at::stack(sums).cpu();
  const int64_t columns = host.numel() / step.micro_batches;
  loss.sums.assign(preference_ ? static_cast<size_t>(columns) : 0, 0.0);
  const double* values = host.const_data_ptr<double>();
  for (int micro = 0; micro < step.micro_batches; ++micro, values += columns) {
    loss.micro.push_back(values[0]);
    for (size_t i = 0; i < loss.sums.size(); ++i) loss.sums[i] += values[i];
  }
  return loss;
}

// Every rank's sum, its wish to stop and how its checkpoints stand, so that all ranks decide alike.
void Trainer::ExchangeLoss(StepLoss& loss) {
  const PhaseSpan span("exchange of losses");
  const double own = std::accumulate(loss.micro.begin(), loss.micro.end(), 0.0);
  // In this order: who asks for a checkpoint and then for a stop gets both, whenever that is.
  const bool stop = observer_.StopRequested();
  uint32_t flags = saver_.OwnFlags(observer_.CheckpointRequested());
  if (stop) flags |= CheckpointSaver::kStop;
  std::vector<double> mine = {own, static_cast<double>(flags)};
  mine.insert(mine.end(), loss.sums.begin(), loss.sums.end());
  const auto width = static_cast<int64_t>(mine.size());
  const Tensor part = at::tensor(mine, at::kDouble).to(comm_.device());
  Tensor all = at::empty({width * comm_.world()}, part.options());
  comm_.AllGather(all, part);
  const Tensor host = all.cpu();
  std::ranges::fill(loss.sums, 0.0);
  for (int rank = 0; rank < comm_.world(); ++rank) {
    const double* values = host.const_data_ptr<double>() + rank * width;
    loss.ranks.push_back(values[0]);
    loss.flags.push_back(static_cast<uint32_t>(values[1]));
    loss.stop = loss.stop || (loss.flags.back() & CheckpointSaver::kStop) != 0;
    for (size_t i = 0; i < loss.sums.size(); ++i) loss.sums[i] += values[2 + i];
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
      for (int64_t line : plan_.RowLines(step, m, model_.mesh().shape().Index(blamed, kRowAxes)))
        lines.push_back(line);
    }
    const bool cut = lines.size() > kRowsShown;
    if (cut) lines.resize(kRowsShown);
    where = fmt::format("on rank {} in the rows of line {}{}", blamed, fmt::join(lines, ", "),
                        cut ? ", ..." : "");
  } else if (what == "gradient norm") {
    where = fmt::format("with a finite loss of {}", loss.total() / DivisorOf(step));
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
  if (preference_) report.preference = preference_->ReportOf(report.step, loss.sums, loss.kl);
  const bool last = report.step == report.total_steps || loss.stop;
  if (report.step % options_.spec.hyperparameters.logging_steps != 0 && !last) return;
  report.loss = loss.total() / DivisorOf(step);
  // 0 / 0 where it had no rows.
  if (loss.targets > 0) {
    report.rank_loss = loss.ranks[static_cast<size_t>(comm_.rank())] / loss.targets;
  }
  report.grad_norm = grad_norm;
  report.lr = lr;
  report.epoch = EpochAfter(step);
  report.tokens = step.tokens;
  report.seconds = seconds;
  if (seconds > 0) {
    report.tokens_per_second = static_cast<double>(step.tokens) / seconds;
    // The stages of a pipeline share the operations of the rows that each of them counts.
    const double shared = seconds * model_.mesh().Size(Axis::kPipeline);
    if (options_.peak_flops > 0) report.mfu = step_flops_.total() / shared / options_.peak_flops;
    report.of_limit = options_.ceiling.SecondsFor(step_flops_) / shared;
  }
  report.memory_bytes = PeakMemoryBytes(comm_.device());
  observer_.OnStep(report);
}

double Trainer::DivisorOf(const Step& step) const {
  return static_cast<double>(std::max<int64_t>(1, preference_ ? step.samples : step.loss_tokens));
}

double Trainer::TargetsOf(const MicroBatch& batch) const {
  if (!preference_) return static_cast<double>(batch.loss_tokens());
  return static_cast<double>(batch.documents()) / (options_.spec.pairs() ? 2 : 1);
}

double Trainer::EpochAfter(const Step& step) const {
  return static_cast<double>(step.position + step.samples) / static_cast<double>(plan_.samples());
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

bool Trainer::AnswersDue(int64_t steps_taken) const {
  if (options_.judge == nullptr) return false;
  const auto& validation = options_.spec.training.validation;
  if (steps_taken == plan_.total_steps()) return true;
  // Counted by steps, so that a run that goes on has them where it would have had them.
  const int64_t between = validation.strategy == spec::EvalStrategy::kEpoch
                              ? plan_.steps_per_epoch()
                              : std::max<int64_t>(1, validation.eval_steps);
  return steps_taken / between % validation.generate_every == 0;
}

std::optional<double> Trainer::Evaluate(int64_t steps_taken) {
  const auto alive = [&] { observer_.OnPhase(TrainPhase::kValidation, steps_taken); };
  alive();
  const MonoTime start = clock_.Mono();
  const ValidationResult result = preference_ ? preference_->Validate(*validation_, alive)
                                              : Validate(model_, *validation_, comm_, alive);
  EvalReport report{.step = steps_taken,
                    .loss = result.loss,
                    .tokens = result.tokens,
                    .of_loss = MetricsOfLoss(result, options_.validation_bytes),
                    .preference = result.preference};
  if (AnswersDue(steps_taken)) {
    const AnswerJudge::Verdict verdict = options_.judge->Judge(model_, comm_, [&] {
      alive();
      return !observer_.StopRequested();
    });
    report.metrics = verdict.metrics;
    report.answered_rows = verdict.rows;
    report.note = verdict.note;
  }
  report.seconds = SecondsOf(clock_.Mono() - start);
  observer_.OnEval(report);
  const std::string& wanted = options_.spec.training.validation.metric_for_best_model;
  if (wanted == "val.loss") return result.loss;
  for (const auto* metrics : {&report.of_loss, &report.metrics}) {
    for (const ValidationMetric& metric : *metrics) {
      if (metric.name == wanted) return metric.value;
    }
  }
  return std::nullopt;
}

// Every rank has the same metric, so all keep the same step.
bool Trainer::KeepIfBest(int64_t step, double metric) {
  const auto& validation = options_.spec.training.validation;
  const bool best = best_.Add(step, metric);
  if (best && validation.save_best_model_at_end) best_weights_ = model_.Snapshot();
  if (best_.hopeless() && comm_.rank() == 0) {
    observer_.OnMessage(fmt::format(
        "the training ends after step {}: no {} better than {} of step {} in {} validations", step,
        validation.metric_for_best_model, *best_.best(), best_.best_step(),
        validation.early_stopping_patience));
  }
  return best;
}

void Trainer::DeliverResult() {
  observer_.OnPhase(TrainPhase::kDelivery, plan_.total_steps());
  if (!best_weights_.empty()) {
    if (comm_.rank() == 0) {
      observer_.OnMessage(fmt::format(
          "delivering the weights of step {}, whose {} is the best: {}", best_.best_step(),
          options_.spec.training.validation.metric_for_best_model, *best_.best()));
    }
    model_.Restore(best_weights_);
    best_weights_.clear();
  }
  const DeliveryOptions delivery{options_.output_dir, options_.model_dir, options_.model_name};
  CheckAdaptersTrained(model_);
  const MonoTime begin = clock_.Mono();
  DeliveryResult result = Deliver(model_, options_.spec, delivery, comm_);
  ConsistencyReport& report = result.consistency;
  report.packing_difference = packing_difference_;
  report.packing_seconds = packing_seconds_;
  const MonoTime delivered = clock_.Mono();
  if (report.consistent) {
    report.delivered_difference =
        CheckDelivered(model_, options_.spec, options_.output_dir, probe_, comm_);
    report.delivered_seconds = SecondsOf(clock_.Mono() - delivered);
  }
  result.artifact.seconds = SecondsOf(clock_.Mono() - begin);
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
