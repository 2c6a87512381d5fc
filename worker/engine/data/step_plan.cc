#include "worker/engine/data/step_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/mutex.h"
#include "common/base/round.h"
#include "common/spec/batch.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/pack.h"

namespace sft::engine {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): small, the same on every machine and compiler.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound): values that would favour small results are drawn again.
  uint64_t Below(uint64_t bound) {
    const uint64_t unfair = (0 - bound) % bound;
    uint64_t value = Next();
    while (value < unfair) value = Next();
    return value % bound;
  }

 private:
  uint64_t state_;
};

void Shuffle(std::vector<uint32_t>& order, Random random) {
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
}

// Another stream of numbers for each: (seed, index + 1) is not (seed + 1, index).
Random RandomOf(uint64_t seed, uint64_t index) { return Random(Random(seed).Next() + index); }

}  // namespace

// The order of the epoch that was last asked for; epochs are visited one after the other.
class StepPlan::EpochOrder {
 public:
  std::shared_ptr<const std::vector<uint32_t>> Get(const StepPlan& plan, int64_t epoch)
      SFT_EXCLUDES(mutex_) {
    const StepPlanOptions& options = plan.options_;
    MutexLock lock(mutex_);
    if (order_ == nullptr || epoch_ != epoch) {
      std::vector<uint32_t> order;
      order.reserve(static_cast<size_t>(plan.epoch_samples_));
      for (size_t i = 0; i < plan.groups_.size(); ++i) {
        Append(plan.groups_[i], RandomOf(~options.seed, i), epoch, order);
      }
      if (options.shuffle) Shuffle(order, RandomOf(options.seed, static_cast<uint64_t>(epoch)));
      order_ = std::make_shared<const std::vector<uint32_t>>(std::move(order));
      epoch_ = epoch;
    }
    return order_;
  }

 private:
  static void Append(const Group& group, Random random, int64_t epoch,
                     std::vector<uint32_t>& order) {
    std::vector<uint32_t> all(group.end - group.begin);
    std::iota(all.begin(), all.end(), group.begin);
    for (int64_t i = 0; i < group.copies; ++i) order.insert(order.end(), all.begin(), all.end());
    if (group.rotating == 0) return;
    Shuffle(all, random);
    const auto size = static_cast<int64_t>(all.size());
    const int64_t first = epoch % size * group.rotating;
    const auto begin = order.end() - order.begin();
    for (int64_t i = 0; i < group.rotating; ++i) {
      order.push_back(all[static_cast<size_t>((first + i) % size)]);
    }
    std::sort(order.begin() + begin, order.end());  // the file's order, where nothing is shuffled
  }

  Mutex mutex_;
  // Shared with callers that still read the former epoch's order.
  std::shared_ptr<const std::vector<uint32_t>> order_ SFT_GUARDED_BY(mutex_);
  int64_t epoch_ SFT_GUARDED_BY(mutex_) = -1;
};

StepPlanOptions StepPlanOptions::FromSpec(const spec::JobSpec& spec) {
  StepPlanOptions options;
  options.per_device_batch = spec.hyperparameters.per_device_batch;
  options.gradient_accumulation_steps = spec.hyperparameters.gradient_accumulation_steps;
  options.world_size = spec.data_ranks();
  options.n_epochs = spec.hyperparameters.n_epochs;
  options.max_steps = spec.hyperparameters.max_steps;
  options.seed = spec.hyperparameters.seed;
  options.shuffle = spec.data.shuffle;
  options.packing = spec.data.packing;
  options.sequence_length = spec.hyperparameters.sequence_length;
  options.pairs = spec.pairs();
  return options;
}

StepPlan::StepPlan(std::shared_ptr<const Dataset> dataset, const StepPlanOptions& options)
    : dataset_(std::move(dataset)), options_(options), order_(std::make_shared<EpochOrder>()) {
  const int64_t documents = dataset_->size();
  if (documents == 0 || options_.per_device_batch < 1 || options_.world_size < 1 ||
      options_.gradient_accumulation_steps < 1 || !(options_.n_epochs > 0)) {
    throw InternalError(fmt::format(
        "no step plan for {} documents, {} rows a device, {} ranks, accumulation {}, {} epochs",
        documents, options_.per_device_batch, options_.world_size,
        options_.gradient_accumulation_steps, options_.n_epochs));
  }
  sample_starts_.push_back(0);
  if (dataset_->parts().empty()) {
    AddSamples(0, documents);
    AddGroup(0, 1);
  }
  for (const Dataset::Part& part : dataset_->parts()) {
    const auto begin = static_cast<uint32_t>(sample_starts_.size() - 1);
    AddSamples(part.begin, part.begin + part.rows->size());
    AddGroup(begin, part.weight);
  }
  global_batch_ = int64_t{options_.per_device_batch} * options_.world_size *
                  options_.gradient_accumulation_steps;
  steps_per_epoch_ = CeilDiv(samples(), global_batch_);
  total_steps_ = options_.max_steps > 0 ? options_.max_steps
                                        : spec::StepsOfEpochs(options_.n_epochs, steps_per_epoch_);
}

// The documents [begin, end) as samples of their own, or packed among themselves.
void StepPlan::AddSamples(int64_t begin, int64_t end) {
  std::vector<std::vector<uint32_t>> bins;
  if (options_.packing) {
    std::vector<int64_t> lengths;
    for (int64_t i = begin; i < end; ++i) lengths.push_back(dataset_->Length(i));
    bins = PackFirstFitDecreasing(lengths, options_.sequence_length);
  }
  if (!options_.packing) {
    const int64_t of_sample = options_.pairs ? 2 : 1;
    if ((end - begin) % of_sample != 0) throw InternalError("a preference row without its pair");
    for (int64_t i = begin; i < end; ++i) {
      if (!options_.only.empty() && options_.only[static_cast<size_t>(i)] == 0) continue;
      sample_documents_.push_back(static_cast<uint32_t>(i));
      if ((i - begin + 1) % of_sample != 0) continue;
      sample_starts_.push_back(static_cast<uint32_t>(sample_documents_.size()));
    }
  }
  for (const std::vector<uint32_t>& bin : bins) {
    for (const uint32_t document : bin) {
      sample_documents_.push_back(static_cast<uint32_t>(begin) + document);
    }
    sample_starts_.push_back(static_cast<uint32_t>(sample_documents_.size()));
  }
}

// The samples from `begin` to the last.
void StepPlan::AddGroup(uint32_t begin, double weight) {
  Group group = {.begin = begin, .end = static_cast<uint32_t>(sample_starts_.size() - 1)};
  const int64_t size = group.end - group.begin;
  group.copies = static_cast<int64_t>(weight);
  const double fraction = weight - static_cast<double>(group.copies);
  group.rotating = std::llround(fraction * static_cast<double>(size));
  // However small the part: it has a row in each epoch.
  if (group.copies == 0 && size > 0) group.rotating = std::max<int64_t>(1, group.rotating);
  epoch_samples_ += group.copies * size + group.rotating;
  groups_.push_back(group);
}

StepPlan StepPlan::ForValidation(std::shared_ptr<const Dataset> dataset, StepPlanOptions options,
                                 int64_t longest_trained) {
  const int64_t tokens = options.per_device_batch * longest_trained;
  const int64_t rows = tokens / std::max<int64_t>(1, dataset->stats().longest);
  if (!options.packing && rows < options.per_device_batch) {
    options.per_device_batch = static_cast<int>(std::max<int64_t>(1, rows));
  }
  options.shuffle = false;
  options.n_epochs = 1;
  options.max_steps = 0;
  const int64_t at_once = int64_t{options.per_device_batch} * options.world_size;
  const int64_t samples = dataset->size() / (options.pairs ? 2 : 1);
  options.gradient_accumulation_steps =
      static_cast<int>(std::max<int64_t>(1, CeilDiv(samples, at_once)));
  return StepPlan(std::move(dataset), options);
}

Step StepPlan::GetStep(int64_t index) const {
  if (index < 0 || index >= total_steps_) {
    throw InternalError(fmt::format("step {} of a plan of {}", index, total_steps_));
  }
  Step step;
  step.index = index;
  step.epoch = index / steps_per_epoch_;
  step.first_sample = index % steps_per_epoch_ * global_batch_;
  step.samples = std::min(global_batch_, samples() - step.first_sample);
  step.position = step.epoch * samples() + step.first_sample;
  step.micro_batches = static_cast<int>(
      CeilDiv(step.samples, int64_t{options_.per_device_batch} * options_.world_size));
  for (const uint32_t document : Documents(step, 0, step.samples)) {
    step.tokens += dataset_->Length(document);
    step.loss_tokens += dataset_->LossTokens(document);
    if (options_.pairs && document % 2 == 0) step.chosen_tokens += dataset_->LossTokens(document);
  }
  return step;
}

std::vector<uint32_t> StepPlan::Documents(const Step& step, int64_t begin, int64_t end) const {
  const auto order = order_->Get(*this, step.epoch);
  std::vector<uint32_t> documents;
  for (int64_t i = begin; i < std::min(end, step.samples); ++i) {
    const uint32_t sample = (*order)[static_cast<size_t>(step.first_sample + i)];
    for (uint32_t at = sample_starts_[sample]; at < sample_starts_[sample + 1]; ++at) {
      documents.push_back(sample_documents_[at]);
    }
  }
  return documents;
}

int64_t StepPlan::FirstSample(const Step& step, int micro, int rank) const {
  if (micro < 0 || micro >= step.micro_batches || rank < 0 || rank >= options_.world_size) {
    throw InternalError(fmt::format("micro-batch {} of {} on rank {} of {}", micro,
                                    step.micro_batches, rank, options_.world_size));
  }
  return (int64_t{micro} * options_.world_size + rank) * options_.per_device_batch;
}

std::vector<uint32_t> StepPlan::MicroBatchDocuments(const Step& step, int micro, int rank) const {
  const int64_t begin = FirstSample(step, micro, rank);
  return Documents(step, begin, begin + options_.per_device_batch);
}

void MicroBatch::Append(const Document& document) {
  const auto length = static_cast<int32_t>(document.tokens.size());
  tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
  for (int32_t i = 0; i < length; ++i) {
    positions.push_back(i);
    // Position i predicts token i + 1 of its own document; the last one predicts nothing.
    const bool labelled = i + 1 < length && document.loss[static_cast<size_t>(i) + 1] != 0;
    if (labelled) {
      loss_rows.push_back(static_cast<int32_t>(targets.size()));
      marks.push_back(document.loss[static_cast<size_t>(i) + 1]);
    }
    targets.push_back(labelled ? document.tokens[static_cast<size_t>(i) + 1] : kIgnore);
  }
  cu_seqlens.push_back(cu_seqlens.back() + length);
  max_seqlen = std::max(max_seqlen, length);
}

MicroBatch StepPlan::GetMicroBatch(const Step& step, int micro, int rank) const {
  MicroBatch batch;
  batch.rows = MicroBatchDocuments(step, micro, rank);
  for (const uint32_t index : batch.rows) batch.Append(dataset_->Get(index));
  const int64_t first = FirstSample(step, micro, rank);
  for (int64_t sample = first; sample < first + options_.per_device_batch; ++sample) {
    int64_t tokens = 0;
    for (const uint32_t index : Documents(step, sample, sample + 1)) {
      tokens += dataset_->Length(index);
    }
    batch.longest_row = std::max(batch.longest_row, static_cast<int32_t>(tokens));
  }
  return batch;
}

std::vector<uint8_t> StepPlan::Reached() const {
  const bool whole = std::ranges::all_of(
      groups_, [](const Group& group) { return group.copies > 0 && group.rotating == 0; });
  if (whole && total_steps_ >= steps_per_epoch_) return {};
  std::vector<uint8_t> reached(static_cast<size_t>(dataset_->size()), 0);
  for (int64_t index = 0; index < total_steps_; ++index) {
    const Step step = GetStep(index);
    for (const uint32_t document : Documents(step, 0, step.samples)) reached[document] = 1;
  }
  if (std::ranges::find(reached, uint8_t{0}) == reached.end()) return {};
  return reached;
}

std::vector<int64_t> StepPlan::RowLines(const Step& step, int micro, int rank) const {
  std::vector<int64_t> lines;
  for (const uint32_t document : MicroBatchDocuments(step, micro, rank)) {
    lines.push_back(dataset_->Get(document).line);
  }
  return lines;
}

}  // namespace sft::engine
