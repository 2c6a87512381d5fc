#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {

// The rows one rank runs forward and backward at once: documents laid end to end, no padding.
// Shapes: n = number of tokens, d = number of documents.
struct MicroBatch {
  static constexpr int32_t kIgnore = -100;

  std::vector<int32_t> tokens;  // [n]
  std::vector<int32_t>
      targets;  // [n] the token that position i predicts, or kIgnore; never crosses documents
  std::vector<int32_t> positions;  // [n] from 0 in each document
  std::vector<int32_t> cu_seqlens = {
      0};                          // [d + 1] document j is [cu_seqlens[j], cu_seqlens[j + 1])
  std::vector<int32_t> loss_rows;  // [loss_tokens()] the i with targets[i] != kIgnore, ascending
  std::vector<uint8_t> marks;      // [loss_tokens()] LossMark of the targets
  std::vector<uint32_t> rows;      // numbers of its documents in the data set, where it is of one
  int32_t max_seqlen = 0;
  int32_t longest_row = 0;  // tokens of the largest sample: of a document, or of those packed

  // Adds a document behind the others. longest_row, which is about samples, stays as it is.
  void Append(const Document& document);

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t documents() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t loss_tokens() const { return static_cast<int64_t>(loss_rows.size()); }
  // A rank that has no rows in a short step runs no forward, but takes part in every collective.
  bool empty() const { return tokens.empty(); }
};

// Options of batching rows; the fields are the job file's keys.
struct StepPlanOptions {
  int per_device_batch = 1;
  int gradient_accumulation_steps = 1;
  int world_size = 1;  // data-parallel ranks
  double n_epochs = 1;
  int64_t max_steps = 0;  // 0: n_epochs decides
  uint64_t seed = 42;
  bool shuffle = true;
  // Several documents share a sample of at most sequence_length tokens (first-fit decreasing);
  // otherwise a sample is one document.
  bool packing = false;
  int sequence_length = 2048;
  bool pairs = false;  // a sample is two documents, the chosen answer and the rejected one
  // By document: whether it is one of the plan's; empty: all are. Both of a pair, or neither.
  std::vector<uint8_t> only;

  static StepPlanOptions FromSpec(const spec::JobSpec& spec);
};

// One optimizer step over samples [first_sample, first_sample + samples) of its epoch's order.
struct Step {
  int64_t index = 0;          // from 0
  int64_t epoch = 0;          // from 0
  int64_t first_sample = 0;   // in the epoch's order
  int64_t samples = 0;        // fewer than a global batch at the end of an epoch
  int64_t position = 0;       // samples consumed before this step since the start of the run
  int micro_batches = 0;      // of every rank; an idle rank's are empty
  int64_t tokens = 0;         // over all ranks
  int64_t loss_tokens = 0;    // over all ranks: what the summed loss is divided by
  int64_t chosen_tokens = 0;  // of pairs: those of chosen answers among them
};

// Order of the training rows over steps, micro-batches and ranks, drawn from a seed before the run.
// Of a part with weight w each sample is in floor(w) copies in every epoch, and a share of them
// once more: another one in each epoch, in an order drawn from the seed, so that all get their
// turn. Every rank holds the same plan, so nothing about batches is ever communicated. The rows of
// a step do not depend on how its global batch is split: micro-batch m of rank r holds the step's
// samples
// [(m * world_size + r) * per_device_batch, + per_device_batch).
// Any thread may call any method.
class StepPlan {
 public:
  StepPlan(std::shared_ptr<const Dataset> dataset, const StepPlanOptions& options);

  // One pass over every row in file order as a single step, for validation beside a training whose
  // longest row has `longest_trained` tokens: a micro-batch takes no more than the training's
  // largest, which memory was planned for, but a row.
  static StepPlan ForValidation(std::shared_ptr<const Dataset> dataset, StepPlanOptions options,
                                int64_t longest_trained);

  // Of an epoch: of a data set of parts with weights, what their weights make of them.
  int64_t samples() const { return epoch_samples_; }
  int64_t global_batch() const { return global_batch_; }
  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  int64_t total_steps() const { return total_steps_; }

  // Throws InternalError when `index` is not in [0, total_steps()).
  Step GetStep(int64_t index) const;

  // Micro-batch `micro` in [0, step.micro_batches) of `rank`.
  MicroBatch GetMicroBatch(const Step& step, int micro, int rank) const;

  // By document, whether a step has it; empty where all are reached.
  std::vector<uint8_t> Reached() const;

  // Line numbers of the rows in a micro-batch, for messages ("NaN loss in rows 12, 90").
  std::vector<int64_t> RowLines(const Step& step, int micro, int rank) const;

 private:
  // Documents of the samples [begin, end) of the step that exist.
  std::vector<uint32_t> Documents(const Step& step, int64_t begin, int64_t end) const;
  std::vector<uint32_t> MicroBatchDocuments(const Step& step, int micro, int rank) const;
  int64_t FirstSample(const Step& step, int micro, int rank) const;  // of the step

  // Samples of one part of the data set, and how many of them an epoch has beside whole copies.
  struct Group {
    uint32_t begin = 0, end = 0;
    int64_t copies = 1, rotating = 0;
  };
  void AddSamples(int64_t begin, int64_t end);
  void AddGroup(uint32_t begin, double weight);

  // constant after construction
  std::shared_ptr<const Dataset> dataset_;
  StepPlanOptions options_;
  std::vector<uint32_t> sample_documents_;  // documents of sample 0, 1, ...
  std::vector<uint32_t> sample_starts_;     // [samples + 1] sample s is [starts[s], starts[s + 1])
  std::vector<Group> groups_;
  int64_t epoch_samples_ = 0;
  int64_t global_batch_ = 0;
  int64_t steps_per_epoch_ = 0;
  int64_t total_steps_ = 0;
  // self-synchronised; the order of the epoch last asked for
  class EpochOrder;
  std::shared_ptr<EpochOrder> order_;  // shared by copies of the plan: they have one order
};

}  // namespace sft::engine
