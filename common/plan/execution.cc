#include "common/plan/execution.h"

#include <algorithm>

#include "common/spec/batch.h"

namespace sft::plan {

std::string_view NameOf(Recompute level) {
  static constexpr std::string_view kNames[] = {"nothing", "norms", "mlp", "linears", "all"};
  return kNames[static_cast<int>(level)];
}

BlockPlan ExecutionPlan::BlockOf(int64_t layer, int64_t layers) const {
  BlockPlan block{.recompute = LevelOf(layer), .mlp_rows = mlp_rows};
  block.keeps_input = InputFrom(layer) == layer;
  block.on_host = layer < kept_on_host && block.recompute >= Recompute::kNorms && block.keeps_input;
  if (layer >= layers - kept) {
    block.copy = WeightCopy::kKept;
  } else if (layer < carried) {
    block.copy = WeightCopy::kCarried;
  }
  return block;
}

int64_t ExecutionPlan::LogitsRows(int64_t vocab) const {
  constexpr int64_t kLeastRows = 64;
  constexpr int64_t kElementBytes = 4;
  return std::max(kLeastRows, logits_bytes / (vocab * kElementBytes));
}

ExecutionPlan Unplanned(const spec::JobSpec& job, Device device) {
  ExecutionPlan run;
  const int64_t given = job.hyperparameters.per_device_batch;
  run.rows = given == 0 ? spec::UnplannedRows(RankRows(job)) : given;
  run.micro_batches = RankRows(job) / run.rows;
  if (job.parallelism.activation_checkpointing) {
    run.shallow = Recompute::kAll;
  } else if (device == Device::kGpu) {
    run.shallow = Recompute::kNorms;
  }
  run.optimizer_on_host = Offloads(job, device);
  run.blocks_on_host = Streams(job, device);
  // On a GPU the head needs some thousand rows at once.
  if (device == Device::kGpu) run.logits_bytes = int64_t{1} << 30;
  return run;
}

int64_t RankRows(const spec::JobSpec& job) {
  const auto& h = job.hyperparameters;
  if (h.per_device_batch == 0) return h.global_batch / job.data_ranks();
  return int64_t{h.per_device_batch} * h.gradient_accumulation_steps;
}

spec::JobSpec WithBatch(spec::JobSpec job, const ExecutionPlan& run) {
  job.hyperparameters.per_device_batch = static_cast<int>(run.rows);
  job.hyperparameters.gradient_accumulation_steps = static_cast<int>(run.micro_batches);
  return job;
}

}  // namespace sft::plan
