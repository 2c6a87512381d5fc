#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/status.h"

// Events that a rank reports to its node: JSON lines in an append-only file, one write(2) per line,
// which the worker tails from its offset. `{"event":"step","time":1700000000.123,...}`. Floating
// point is the shortest text that reads back equal; NaN and infinities are the strings "nan",
// "inf", "-inf". Readers skip unknown events and members.

namespace sft::channel {

// Progress of `sft-rank prepare`: rows seen so far.
struct ProgressEvent {
  std::string phase;  // "tokenise"
  int64_t done = 0;
  int64_t total = 0;
};

// Rows that were left out for one reason.
struct SkippedRows {
  std::string reason;  // "too long"
  int64_t rows = 0;
};
// `sft-rank prepare` has finished.
struct PreparedEvent {
  int64_t rows = 0, used = 0, skipped = 0;
  std::vector<SkippedRows> skipped_by;                  // by reason
  int64_t skipped_tokens = 0, skipped_loss_tokens = 0;  // of those that are too long
  int64_t tokens = 0, loss_tokens = 0;
  bool from_cache = false;
  std::string forms;      // "90 ShareGPT, 10 text"
  int64_t documents = 0;  // more than used rows where long ones were split
  // Rows cut or split (data.on_long_rows), and their tokens that are trained on nowhere.
  int64_t cut = 0, cut_tokens = 0, cut_loss_tokens = 0;
  int64_t repeated = 0;    // rows left out by data.dedup; not in rows
  int64_t validation = 0;  // rows that are validated on
};

// The rank is about to run step 1.
struct ReadyEvent {
  int rank = 0, world = 1;
  std::string device;  // "cpu", "cuda:0 NVIDIA H100 80GB HBM3"
  int64_t total_steps = 0;
  int64_t trainable_parameters = 0, total_parameters = 0;
  double seconds = 0;  // from process start
};

// A figure of the plan and its measured value; 0: not known.
struct PlanBytes {
  int64_t predicted = 0, measured = 0;
};
// Predicted memory of one category.
struct PlanCategory {
  std::string name;  // "activations"
  int64_t bytes = 0;
};

// Sent after the first steps on a GPU: how the job runs there (common/plan/plan.h), predicted and
// measured. Bytes are this rank's, tokens per second those of all ranks.
struct PlanEvent {
  int rank = 0;
  int64_t rows = 0, micro_batches = 0;  // of a rank per step
  std::string description;
  std::vector<PlanCategory> categories;       // predicted; they sum to reserved_bytes
  PlanBytes resident_bytes;                   // allocated between steps
  PlanBytes allocated_bytes, reserved_bytes;  // peaks
  PlanBytes outside_bytes;                    // outside the allocator: driver, libraries
  double predicted_tokens_per_second = 0, measured_tokens_per_second = 0;
};

// Means over the rows of a step or a validation of preferences (training.loss); NaN where no row
// gives a value.
struct PreferenceFigures {
  double rewards_chosen = 0, rewards_rejected = 0, rewards_accuracies = 0;
  double logps_chosen = 0, logps_rejected = 0;
  double kl = 0;
};

// What an axis of the ranks' grid cost this rank in the step before (worker/engine/dist/traffic.h).
struct AxisTraffic {
  std::string axis;                 // "shard", "replicate", "world"
  double exposed_share = 0;         // part of the step in which it was waited for
  double gigabytes_per_second = 0;  // sent, over the whole step
};

// An optimizer step was made.
struct StepEvent {
  int64_t step = 0, total_steps = 0;
  double loss = 0, lr = 0, grad_norm = 0;
  int64_t tokens = 0;            // tokens of this step without padding, over all ranks
  double tokens_per_second = 0;  // over all ranks
  double seconds = 0;            // of this step
  int64_t gpu_memory_bytes = 0;  // this rank: peak reserved by the allocator; resident set on CPU
  double mfu = 0;                // 0: not known
  double of_limit = 0;           // fraction of what the device's measured rates allow; 0: not known
  double epoch = 0;              // position in the data, 0 .. n_epochs
  std::vector<PreferenceFigures> preference;  // one, or none for a job that has no preferences
  std::vector<AxisTraffic> traffic;           // none of one rank
  // `loss` is over the rows of all ranks, this one over those of this rank; NaN: it had none, or is
  // too old to say.
  double rank_loss = std::numeric_limits<double>::quiet_NaN();
};

// Answers to prompts that there are so far, of all ranks. Sent by rank 0 of a job that answers.
struct AnswersEvent {
  int64_t answers = 0, total = 0;
  int64_t tokens = 0;  // of the answers since the last event
  double tokens_per_second = 0;
  double seconds = 0;  // an answer, over all ranks, since this attempt began; 0: not known
};

// A number beside the validation loss: "val.rouge_l".
struct EvalMetric {
  std::string name;
  double value = 0;
};

// The validation rows were evaluated.
struct EvalEvent {
  int64_t step = 0;
  double loss = 0;  // metric "val.loss"
  int64_t tokens = 0;
  double seconds = 0;
  // What follows from the loss, and of answers to validation rows, where some were given.
  std::vector<EvalMetric> metrics;
  int64_t answered_rows = 0;
  std::vector<PreferenceFigures> preference;  // as of a step
};

// Consistency of the replicas at the end: sha256 over the trained weights of this rank; for
// full_shard over the gathered model, with what was delivered.
struct ConsistencyEvent {
  int rank = 0;
  std::string weights_sha256;
  std::string delivered_sha256;
  bool consistent = false;
  // Largest differences of logits, as parts of the largest: of a packed document from itself alone,
  // before training; of the files that were written, read back, from what was trained. And what it
  // took to find them.
  double packing_difference = 0;
  double delivered_difference = 0;
  double packing_seconds = 0;
  double delivered_seconds = 0;
};

// A file set was written and verified.
struct ArtifactEvent {
  std::string kind;  // "adapter", "model", "answers" or "evaluation"
  std::string path;  // folder on this node
  int64_t bytes = 0;
};

// A checkpoint is complete and durable on this node: `path` holds the files of this node's ranks
// and, on rank 0's node, the manifest. Sent by the first rank of each node.
struct CheckpointEvent {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;         // on this node
  std::string reason;        // "steps", "epoch", "time", "asked", "best", "stopping"
  double seconds = 0;        // from the end of the step until it was durable
  double stall_seconds = 0;  // time of these in which training was stopped
  double metric = 0;         // metric_for_best_model at that step, when has_metric
  bool has_metric = false;
  bool best = false;  // the best one so far
};

// The rank continues from a checkpoint.
struct ResumedEvent {
  int64_t step = 0;  // steps already done
  std::string path;
  std::vector<std::string> changes;  // differences that were accepted
};

// The rank ends with an error. domain: "user", "infrastructure", "internal".
struct FatalEvent {
  std::string domain;
  std::string code;     // short stable name: "nan_loss", "cuda_oom", "bad_data", ...
  std::string message;  // the fault and its place
  std::string advice;   // what to do
};

// A word for the job's owner that ends nothing. Written by the worker, in node.events, and by
// ranks.
struct WarningEvent {
  std::string message;
  std::string kind;  // its type in the job's history: "model"; empty: a warning
};

using EventBody = std::variant<ProgressEvent, PreparedEvent, ReadyEvent, StepEvent, EvalEvent,
                               ConsistencyEvent, ArtifactEvent, FatalEvent, PlanEvent,
                               CheckpointEvent, ResumedEvent, WarningEvent, AnswersEvent>;

// The content of a line.
struct Event {
  double time = 0;  // Unix seconds
  EventBody body;
};

// One line, with its '\n'.
std::string ToLine(const Event& event);
// InvalidArgument for a broken line; NotFound for an event of an unknown name (skip it).
absl::StatusOr<Event> ParseLine(std::string_view line);

}  // namespace sft::channel
