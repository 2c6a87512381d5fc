#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/spec/job_spec.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/optim/lr_schedule.h"
#include "worker/engine/train/answer_judge.h"
#include "worker/engine/train/best_tracker.h"
#include "worker/engine/train/checkpoint_loader.h"
#include "worker/engine/train/checkpoint_saver.h"
#include "worker/engine/train/flops.h"
#include "worker/engine/train/observer.h"
#include "worker/engine/train/preference.h"
#include "worker/engine/train/self_check.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {

// One training run of this rank; the same on every rank but for the device.
struct TrainerOptions {
  spec::JobSpec spec;
  std::filesystem::path model_dir;
  std::string model_name;  // the base as the job named it, for the adapter's configuration
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;  // null: none
  int64_t validation_bytes = 0;               // of the text of its tokens with loss; 0: not known
  std::shared_ptr<AnswerJudge> judge;         // of answers to validation rows; null: loss alone
  std::filesystem::path output_dir;           // the artifact is written here
  std::filesystem::path adapter_dir;  // its values are the first ones of the job's; empty: fresh
  std::filesystem::path cache_dir;    // of tokenised rows, for a reference too; empty: none
  std::optional<plan::ExecutionPlan> execution;  // empty: plan::Unplanned
  // Dense peak of one device in the type of the computation, operations a second; 0: not known.
  double peak_flops = 0;
  Ceiling ceiling;
  std::string tokenizer;             // ChatTokenizer::digest, for the stamp of checkpoints
  CheckpointPlace checkpoints;       // where they are written
  CheckpointLoader::Options resume;  // dir empty: begins at step 0
};

// Result of a run.
struct TrainResult {
  int64_t steps = 0;     // those before a checkpoint too
  bool stopped = false;  // ended by StopRequested: nothing was delivered
};

// Runs a whole job on one rank: every rank makes one with the same options and calls Run. Two runs
// of one job on the same kind of device and number of ranks give the same bits, also where one of
// them was ended and went on from a checkpoint; on another number of ranks, or sharded otherwise,
// it goes on with the same rows in the same steps.
// Thread-compatible; borrows comm, observer and clock.
class Trainer {
 public:
  // Verifies the checkpoint to go on from, loads the model and then the checkpoint's states.
  // Throws UserError: model or data cannot be used, validation asked for without rows; and as
  // CheckpointLoader.
  Trainer(TrainerOptions options, Communicator& comm, TrainObserver& observer,
          Clock& clock = Clock::Real());

  // Checks that packed documents stay apart, trains, validates when the job says so (and once
  // before step 1, for comparison), saves checkpoints, and delivers. Throws UserError when the loss
  // or the gradient is not finite (saying at which step, on which rank and in which rows) or an
  // adapter learned nothing, InfrastructureError when a peer or the disk fails, InternalError when
  // ranks diverged or a check of self_check.h fails.
  TrainResult Run();

  TrainingModel& model() { return model_; }
  const StepPlan& plan() const { return plan_; }

 private:
  struct StepLoss {
    std::vector<double> micro;    // this rank's sums
    double targets = 0;           // of this rank: what its sums are divided by
    std::vector<double> ranks;    // every rank's sum
    std::vector<uint32_t> flags;  // every rank's CheckpointSaver::Flag
    bool stop = false;            // some rank wants to stop
    std::vector<double> sums;     // over all ranks: of preferences, PreferenceSum
    double kl = 0;                // PreferenceScale's
    double total() const;
  };

  void PreparePreferences();
  void CheckBeforeTraining();
  void RunStep(const Step& step);
  void ComputeStep(const Step& step);
  StepLoss ForwardBackward(const Step& step);
  void Count(const MicroBatch& batch, StepLoss* loss);
  void ExchangeLoss(StepLoss& loss);
  [[noreturn]] void FailNotFinite(const Step& step, const StepLoss& loss, const std::string& what);
  void Report(const Step& step, const StepLoss& loss, double grad_norm, double lr, double seconds);
  double EpochAfter(const Step& step) const;
  // What the step's summed loss is divided by.
  double DivisorOf(const Step& step) const;
  // The part of it that a micro-batch has.
  double TargetsOf(const MicroBatch& batch) const;
  bool EvalDue(const Step& step) const;
  // Whether the validation after so many steps has rows answered.
  bool AnswersDue(int64_t steps_taken) const;
  // The metric_for_best_model; nothing where this validation does not have it.
  std::optional<double> Evaluate(int64_t steps_taken);
  bool KeepIfBest(int64_t step, double metric);
  void SaveAfter(const Step& step, const std::optional<double>& metric, bool best);
  void Resume();
  void StartFromAdapter();
  void DeliverResult();

  TrainerOptions options_;
  Communicator& comm_;
  TrainObserver& observer_;
  Clock& clock_;
  StepPlan plan_;
  std::optional<StepPlan> validation_;
  Stamp stamp_;                             // nothing where no checkpoint is read or written
  std::optional<CheckpointLoader> loader_;  // until the states are restored
  TrainingModel model_;
  std::optional<PreferenceTraining> preference_;  // of a job that learns from preferences
  BestTracker best_;
  std::vector<at::Tensor> best_weights_;  // of the best step, where they are to be delivered
  CheckpointSaver saver_;
  LrSchedule schedule_;
  StepFlops flops_;
  ProbeDocuments probe_;
  double packing_difference_ = 0, packing_seconds_ = 0;  // ConsistencyReport
  int64_t taken_ = 0;                                    // steps
  bool stop_ = false;
  Flops step_flops_;  // of this rank's rows in the step under way
  MonoTime last_report_{};
};

}  // namespace sft::engine
