#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/data/mismatched.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/preference_loss.h"
#include "worker/engine/train/preference_watch.h"
#include "worker/engine/train/training_model.h"
#include "worker/engine/train/validation.h"

namespace sft::engine {

// Rows of preferences with what the reference says of them.
struct PreferenceRows {
  std::shared_ptr<const Dataset> rows;
  std::optional<Mismatched> mismatched;  // KTO's
  std::vector<double> reference;         // by document; empty where the loss has none
  std::vector<double> mismatched_reference;
};

// What a training on preferences adds to a step: its objective, its metrics and a look at them.
// Thread-compatible; borrows all that it is given.
class PreferenceTraining {
 public:
  struct Options {
    const spec::JobSpec& spec;
    std::shared_ptr<const Dataset> train, validation;  // validation may be null
    std::filesystem::path adapter_dir;                 // what the model starts from; empty: fresh
    std::filesystem::path cache_dir;                   // empty: the reference is not kept
    bool writes_cache = false;
    const Stamp& stamp;
    const StepPlan& plan;  // of the training
  };
  // Computes the reference, or reads what was computed: `model` has not been trained or restored
  // yet. A collective. Throws InfrastructureError when it is asked to stop meanwhile.
  PreferenceTraining(const Options& options, TrainingModel& model, Communicator& comm,
                     TrainObserver& observer);

  // What the rows of a step have in common. A collective for KTO, whose z it computes.
  PreferenceScale ScaleOf(const StepPlan& plan, const Step& step) {
    return ScaleOf(train_, plan, step, [] {});
  }
  RowObjective ObjectiveOf(const MicroBatch& batch, const PreferenceScale& scale) const {
    return ObjectiveOf(train_, batch, scale);
  }
  // The metrics of a step (from 1), made of its sums over all ranks. Warns of what goes wrong;
  // throws InternalError where the first step of a run does not begin at the reference.
  PreferenceReport ReportOf(int64_t step, const std::vector<double>& sums, double kl);

  // `alive` is called before each micro-batch.
  ValidationResult Validate(const StepPlan& plan, const std::function<void()>& alive);

 private:
  PreferenceRows Prepare(const Options& options, const std::shared_ptr<const Dataset>& rows,
                         std::string_view rows_key, const std::vector<uint8_t>& reached);
  PreferenceScale ScaleOf(const PreferenceRows& of, const StepPlan& plan, const Step& step,
                          const std::function<void()>& alive);
  RowObjective ObjectiveOf(const PreferenceRows& of, const MicroBatch& batch,
                           const PreferenceScale& scale) const;
  PreferenceReport MeansOf(const std::vector<double>& sums, double kl) const;
  void CheckStart(const PreferenceReport& report, const std::vector<double>& sums);
  void Watch(int64_t step, const PreferenceReport& report, const std::vector<double>& sums);
  void Warn(bool& warned, const std::string& message);
  void WarnOfImbalance();

  const spec::JobSpec& spec_;
  TrainingModel& model_;
  Communicator& comm_;
  TrainObserver& observer_;
  int64_t total_steps_;
  PreferenceRows train_, validation_;
  // What the warnings go by.
  AccuracyWatch accuracy_;
  std::optional<double> first_logp_;
  bool warned_of_accuracy_ = false, warned_of_fall_ = false, warned_of_start_ = false;
};

}  // namespace sft::engine
