#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sft::engine {

// A number that validation found beside its loss.
struct ValidationMetric {
  std::string name;  // "val.rouge_l"
  double value = 0;
};

// Reports of a training run, in the order in which they come: ready, resumed, then evals, steps
// and checkpoints, then consistency and artifact. All calls come from the training thread, on every
// rank.

// The rank is about to run its first step.
struct ReadyReport {
  int64_t total_steps = 0;
  int64_t trainable_parameters = 0;
  int64_t total_parameters = 0;  // of the base
};

// The run goes on from a checkpoint.
struct ResumedReport {
  int64_t step = 0;  // steps that are done
  std::string path;
  std::vector<std::string> changes;  // differences that were accepted
  double verify_seconds = 0;         // for the files of this rank
  double restore_seconds = 0;
};

// A checkpoint is complete and durable on this rank's node.
struct CheckpointReport {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;  // on this node
  std::string reason;
  double seconds = 0;            // from the step's end until it was durable
  double stall_seconds = 0;      // of them the training stood still
  std::optional<double> metric;  // of the validation after that step
  bool best = false;             // the best so far
};

// Phase of a run; told without a report of its own, at every step.
enum class TrainPhase {
  kStep,         // a step begins
  kOwnWorkDone,  // forward and backward of this rank are done and their result has been seen
  kStepDone,
  kValidation,
  kCheckpoint,  // the training stands still for one
  kDelivery,
};

// What a step or a validation of preferences says beside its loss: means over its rows. Values that
// no row gives are not finite.
struct PreferenceReport {
  // An answer's reward: beta times the difference of its log-probability from the reference's, or
  // without a reference beta times its mean log-probability. That both fall is normal: margins
  // matter.
  double rewards_chosen = 0, rewards_rejected = 0, rewards_margins = 0;
  double rewards_accuracies = 0;  // share of pairs whose chosen answer has the larger reward
  double logps_chosen = 0, logps_rejected = 0;  // log-probabilities of whole answers
  double kl = 0;                                // KTO's z; 0 for the other losses
};

// One optimizer step.
struct StepReport {
  int64_t step = 0;  // from 1
  int64_t total_steps = 0;
  double loss = 0;  // mean over the step's targets, all ranks
  // Over those of this rank's rows; NaN: it had none.
  double rank_loss = std::numeric_limits<double>::quiet_NaN();
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double epoch = 0;    // passes over the data so far, a fraction
  int64_t tokens = 0;  // of all ranks, no padding
  double seconds = 0;  // since the step before was reported as done
  double tokens_per_second = 0;
  int64_t memory_bytes = 0;  // this rank's peak: the allocator's on a GPU, resident set on a CPU
  double mfu = 0;            // 0 where the device's peak is not known
  double of_limit = 0;       // speed as part of what the measured rates allow; 0: not measured
  std::optional<PreferenceReport> preference;  // of a job that learns from preferences
};

// One pass over the validation rows.
struct EvalReport {
  int64_t step = 0;  // optimizer steps taken; 0: before the first
  double loss = 0;   // mean over all targets of the validation rows
  int64_t tokens = 0;
  double seconds = 0;
  // val.perplexity and val.bits_per_byte, where the loss is that of tokens.
  std::vector<ValidationMetric> of_loss;
  std::vector<ValidationMetric> metrics;  // of answers; empty where none were given
  int64_t answered_rows = 0;
  std::string note;  // what of the answers was cut short, on this rank; empty: nothing
  std::optional<PreferenceReport> preference;
};

// Proof that the ranks hold one model, and that it is the one delivered.
struct ConsistencyReport {
  std::string weights_sha256;    // of the trained weights as this rank has them
  std::string delivered_sha256;  // of what was read back from the artifact
  bool consistent = false;       // equal on all ranks, and to the artifact
  // Largest differences of logits, as parts of the largest (self_check.h): of a packed document
  // from itself alone, before training; and of the files, read back, from what was trained. And
  // what it took to find them.
  double packing_difference = 0, packing_seconds = 0;
  double delivered_difference = 0, delivered_seconds = 0;
};

// The artifact was written and read back.
struct ArtifactReport {
  std::string kind;  // "adapter" or "model"
  std::string path;
  int64_t bytes = 0;
  double seconds = 0;  // to gather, write and read it back
};

// Implemented by sft-rank (events) and by tests. Calls must not block for long: ranks wait for each
// other.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // `step` counts from 1: under way or, between two, done.
  virtual void OnPhase(TrainPhase, int64_t /*step*/) {}
  // How far what comes before the first step is, on every rank: "reference", micro-batches.
  virtual void OnProgress(std::string_view /*phase*/, int64_t /*done*/, int64_t /*total*/) {}
  virtual void OnReady(const ReadyReport&) {}
  virtual void OnResumed(const ResumedReport&) {}
  virtual void OnStep(const StepReport&) {}
  virtual void OnEval(const EvalReport&) {}
  virtual void OnConsistency(const ConsistencyReport&) {}
  virtual void OnArtifact(const ArtifactReport&) {}      // on rank 0 only
  virtual void OnCheckpoint(const CheckpointReport&) {}  // on the first rank of each node only
  // For the log: what people should know and no program needs.
  virtual void OnMessage(std::string_view) {}
  // The same for the job's owner, who may want to change something. On rank 0 only.
  virtual void OnWarning(std::string_view) {}
  // Asked between steps. The run ends when any rank says so.
  virtual bool StopRequested() { return false; }
  // Asked between steps: whether a checkpoint is wanted that was not when this was asked before.
  // Any rank may say so.
  virtual bool CheckpointRequested() { return false; }
};

}  // namespace sft::engine
