#include "worker/engine/train/preference.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/train/reference.h"

namespace sft::engine {
namespace {

// What the reference's values follow from, beside the rows.
constexpr const char* kReferenceKeys[] = {
    "model.weights",  "model.configuration", "base.weights",   "engine.version",
    "engine.backend", "engine.compute_type", "training.matmul"};

std::string KeyOfReference(const PreferenceTraining::Options& options, std::string_view rows_key,
                           std::string_view which, const std::vector<uint8_t>& reached) {
  std::string text(which);
  for (const char* key : kReferenceKeys) text += " " + options.stamp.at(key);
  if (!options.adapter_dir.empty()) {  // where the training starts
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
      const std::string path = options.adapter_dir / name;
      const absl::StatusOr<io::FileHash> hash = io::HashFile(path);
      if (!hash.ok()) throw InfrastructureError(std::string(Message(hash.status())));
      text += " " + hash->sha256;
    }
  }
  text += fmt::format(" {} {}", options.spec.hyperparameters.sequence_length,
                      options.stamp.at(std::string(rows_key)));
  if (!reached.empty()) {
    text += " of " + io::Sha256Hex({reinterpret_cast<const char*>(reached.data()), reached.size()});
  }
  return io::Sha256Hex(text);
}

bool IsBad(const Document& document) {
  return std::ranges::any_of(document.loss,
                             [](uint8_t mark) { return (mark & kOfBadAnswer) != 0; });
}

// The loss of the logarithm of a chosen answer's probability that is told, per token.
constexpr double kFarFall = 1.0;

}  // namespace

PreferenceTraining::PreferenceTraining(const Options& options, TrainingModel& model,
                                       Communicator& comm, TrainObserver& observer)
    : spec_(options.spec),
      model_(model),
      comm_(comm),
      observer_(observer),
      total_steps_(options.plan.total_steps()),
      accuracy_(options.spec.training.loss) {
  train_ = Prepare(options, options.train, "data.rows", options.plan.Reached());
  if (options.validation != nullptr) {
    validation_ = Prepare(options, options.validation, "data.validation_rows", {});
  }
  if (spec_.training.loss == spec::Loss::kKto) WarnOfImbalance();
}

PreferenceRows PreferenceTraining::Prepare(const Options& options,
                                           const std::shared_ptr<const Dataset>& rows,
                                           std::string_view rows_key,
                                           const std::vector<uint8_t>& reached) {
  PreferenceRows result{.rows = rows};
  if (!spec_.has_reference()) return result;
  const auto logps = [&](std::string_view which,
                         std::function<MicroBatch(const MicroBatch&)> change) {
    ReferenceJob job{.spec = spec_,
                     .rows = rows,
                     .change = std::move(change),
                     .key = KeyOfReference(options, rows_key, which, reached),
                     .writes = options.writes_cache,
                     .reached = reached,
                     .longest_trained = options.train->stats().longest};
    if (!options.cache_dir.empty()) job.file = options.cache_dir / (job.key + ".reference");
    return ReferenceLogps(job, model_, comm_, observer_);
  };
  result.reference = logps("answers", {});
  if (spec_.training.loss == spec::Loss::kKto) {
    result.mismatched.emplace(rows, spec_.hyperparameters.sequence_length);
    result.mismatched_reference =
        logps("mismatched", [&](const MicroBatch& batch) { return result.mismatched->Of(batch); });
  }
  return result;
}

PreferenceScale PreferenceTraining::ScaleOf(const PreferenceRows& of, const StepPlan& plan,
                                            const Step& step, const std::function<void()>& alive) {
  PreferenceScale scale{.samples = static_cast<double>(step.samples),
                        .chosen_tokens = static_cast<double>(step.chosen_tokens)};
  if (!of.mismatched) return scale;
  double sum = 0;
  for (int micro = 0; micro < step.micro_batches; ++micro) {
    alive();
    const MicroBatch batch = of.mismatched->Of(plan.GetMicroBatch(step, micro, comm_.rank()));
    const at::Tensor losses = model_.RowLosses(batch);
    if (batch.empty()) continue;
    sum += AnswerLogps(batch, losses).sum().item<double>();
    for (const uint32_t row : batch.rows) sum -= of.mismatched_reference[row];
  }
  scale.kl = std::max(0.0, AllReduceSumDouble(comm_, sum) / std::max(1.0, scale.samples));
  return scale;
}

RowObjective PreferenceTraining::ObjectiveOf(const PreferenceRows& of, const MicroBatch& batch,
                                             const PreferenceScale& scale) const {
  std::vector<double> reference;
  if (!of.reference.empty()) {
    for (const uint32_t row : batch.rows) reference.push_back(of.reference[row]);
  }
  return PreferenceObjective(spec_, batch, reference, scale, comm_.device());
}

PreferenceReport PreferenceTraining::MeansOf(const std::vector<double>& sums, double kl) const {
  const auto mean = [&](PreferenceSum sum, double count) {
    return count > 0 ? sums[sum] / count : std::numeric_limits<double>::quiet_NaN();
  };
  const double chosen = sums[kChosenCount], rejected = sums[kRejectedCount];
  PreferenceReport report;
  report.rewards_chosen = mean(kChosenRewardSum, chosen);
  report.rewards_rejected = mean(kRejectedRewardSum, rejected);
  report.rewards_margins = report.rewards_chosen - report.rewards_rejected;
  report.rewards_accuracies = mean(kRightSum, spec_.pairs() ? chosen : chosen + rejected);
  report.logps_chosen = mean(kChosenLogpSum, chosen);
  report.logps_rejected = mean(kRejectedLogpSum, rejected);
  report.kl = kl;
  return report;
}

PreferenceReport PreferenceTraining::ReportOf(int64_t step, const std::vector<double>& sums,
                                              double kl) {
  PreferenceReport report = MeansOf(sums, kl);
  if (step == 1) CheckStart(report, sums);
  Watch(step, report, sums);
  return report;
}

// Before the first update the model is the reference: margins are 0, so DPO's loss is ln 2. A wrong
// reference shows here and nowhere else.
void PreferenceTraining::CheckStart(const PreferenceReport& report,
                                    const std::vector<double>& sums) {
  if (spec_.training.loss != spec::Loss::kDpo) return;
  const double pairs = sums[kChosenCount];
  const Start start = JudgeStart({.margin = report.rewards_margins,
                                  .beta = spec_.training.preference.beta,
                                  .answer_tokens = 2 * sums[kChosenAnswerTokens] / pairs,
                                  .pairs = pairs,
                                  .fp32 = model_.compute_type() == at::kFloat});
  if (start == Start::kAtReference) return;
  const std::string found = fmt::format(
      "before its first update the model already prefers answers: the margin is {}, "
      "not about 0, so the loss does not begin at ln 2",
      report.rewards_margins);
  if (start == Start::kOdd) {
    return Warn(warned_of_start_,
                found + "; bf16 can round so, but look whether the loss falls as it should");
  }
  throw InternalError(found, "reference_differs",
                      "report this with the job file; the reference is not this model's");
}

void PreferenceTraining::Warn(bool& warned, const std::string& message) {
  if (warned) return;
  warned = true;
  if (comm_.rank() == 0) observer_.OnWarning(message);
}

void PreferenceTraining::Watch(int64_t step, const PreferenceReport& report,
                               const std::vector<double>& sums) {
  const std::string wrong = accuracy_.After(step, total_steps_, report.rewards_accuracies);
  if (!wrong.empty()) Warn(warned_of_accuracy_, wrong);
  if (sums[kChosenAnswerTokens] == 0) return;
  const double logp = sums[kChosenLogpSum] / sums[kChosenAnswerTokens];
  if (!first_logp_) first_logp_ = logp;
  const double fall =
      spec_.has_reference()
          ? -sums[kChosenRewardSum] / spec_.training.preference.beta / sums[kChosenAnswerTokens]
          : *first_logp_ - logp;
  if (fall > kFarFall) {
    Warn(warned_of_fall_,
         fmt::format("at step {} the chosen answers have lost {:.1f} nats a token: that both "
                     "rewards fall is normal, but a fall this large damages the language itself; "
                     "lower learning_rate, raise training.preference.beta, or set sft_weight",
                     step, fall));
  }
}

void PreferenceTraining::WarnOfImbalance() {
  double bad = 0;
  for (int64_t row = 0; row < train_.rows->size(); ++row) bad += IsBad(train_.rows->Get(row));
  const double good = static_cast<double>(train_.rows->size()) - bad;
  const auto& p = spec_.training.preference;
  const std::string told =
      ImbalanceText(good, bad, p.kto_desirable_weight, p.kto_undesirable_weight);
  if (comm_.rank() == 0 && !told.empty()) observer_.OnWarning(told);
}

ValidationResult PreferenceTraining::Validate(const StepPlan& plan,
                                              const std::function<void()>& alive) {
  const Step step = plan.GetStep(0);
  const PreferenceScale scale = ScaleOf(validation_, plan, step, alive);
  at::Tensor sums =
      at::zeros({kPreferenceSums}, at::TensorOptions(comm_.device()).dtype(at::kDouble));
  for (int micro = 0; micro < step.micro_batches; ++micro) {
    alive();
    const MicroBatch batch = plan.GetMicroBatch(step, micro, comm_.rank());
    sums.add_(ObjectiveOf(validation_, batch, scale)(model_.RowLosses(batch)).sums);
  }
  comm_.AllReduceSum(sums);
  const at::Tensor host = sums.cpu();
  const double* values = host.const_data_ptr<double>();
  const std::vector<double> all(values, values + kPreferenceSums);
  return {.loss = all[kLossSum] / std::max(1.0, scale.samples),
          .tokens = step.tokens,
          .preference = MeansOf(all, scale.kl)};
}

}  // namespace sft::engine
