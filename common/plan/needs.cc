#include "common/plan/needs.h"

#include <algorithm>
#include <utility>

#include "common/plan/parameters.h"
#include "common/plan/plan.h"

namespace sft::plan {
namespace {

constexpr int kMostGpus = 64;
constexpr int kRowsOfAGpu = 4;
constexpr int64_t kShortestRow = 8;  // of a job

enum class Method { kQlora, kLora, kFull };

spec::JobSpec JobOf(Method method, const ModelConfig& model, int64_t row, std::string_view gpu) {
  spec::JobSpec job;
  job.compute.gpu_type = gpu;
  job.training.mode = method == Method::kFull ? spec::Mode::kFullFinetune : spec::Mode::kLora;
  job.training.use_qlora = method == Method::kQlora;
  job.quantization.bits = method == Method::kQlora ? 4 : 0;
  const int64_t most = model.max_positions > 0 ? std::max(kShortestRow, model.max_positions) : row;
  job.hyperparameters.sequence_length = static_cast<int>(std::min(row, most));
  if (method == Method::kFull) job.hyperparameters.optimizer = spec::Optimizer::kAuto;
  return job;
}

// `rows` of each of `gpus`, whose weights are cut over all.
void Spread(int gpus, int rows, spec::JobSpec& job) {
  job.compute.gpu_count = job.compute.gpus_per_node = gpus;
  job.hyperparameters.per_device_batch = rows;
  job.hyperparameters.gradient_accumulation_steps = 1;
  job.hyperparameters.global_batch = rows * gpus;
  if (gpus > 1) job.parallelism.sharding = spec::Sharding::kFullShard;
}

// The job in the precision that takes the least memory.
spec::JobSpec Leanest(Method method, spec::JobSpec job) {
  if (method != Method::kFull) return job;
  job.hyperparameters.optimizer = spec::Optimizer::kAdamW8bit;
  job.hyperparameters.master_weights = spec::MasterWeights::kBf16;
  return job;
}

Need NewNeed(Method method, bool smallest, const spec::JobSpec& job) {
  return {.method = method == Method::kQlora  ? "QLoRA"
                    : method == Method::kLora ? "LoRA"
                                              : "full",
          .smallest = smallest,
          .sequence_length = job.hyperparameters.sequence_length};
}

Need SmallestNeed(const ModelConfig& model, std::string_view gpu, int64_t memory) {
  spec::JobSpec job = JobOf(Method::kQlora, model, kSmallestRow, gpu);
  Need need = NewNeed(Method::kQlora, /*smallest=*/true, job);
  for (int gpus = 1; gpus <= kMostGpus; gpus *= 2) {
    Spread(gpus, 1, job);
    const absl::StatusOr<int64_t> least = LeastBytes(model, job);
    if (!least.ok()) return need;
    need.memory_bytes = GpuBytes(job, *least);
    if (need.memory_bytes > memory) continue;
    need.gpus = gpus;
    return need;
  }
  return need;
}

Need FastestNeed(Method method, const ModelConfig& model, std::string_view gpu, int64_t memory) {
  spec::JobSpec job = JobOf(method, model, kFastestRow, gpu);
  Need need = NewNeed(method, /*smallest=*/false, job);
  for (int gpus = 1; gpus <= kMostGpus; gpus *= 2) {
    Spread(gpus, kRowsOfAGpu, job);
    PlanInput input{.shape = model,
                    .job = job,
                    .gpu = NearestGpu(gpu),
                    .memory_bytes = AllocatorBytes(job, memory, /*opened=*/false)};
    // Plans that fail take long: nothing that cannot fit is planned.
    const absl::StatusOr<int64_t> least = LeastBytes(model, Leanest(method, job));
    if (!least.ok()) return need;
    need.memory_bytes = GpuBytes(job, *least);
    if (*least > input.memory_bytes) continue;
    if (method == Method::kFull) input.job = WithPrecision(input);
    const absl::StatusOr<Plan> planned = MakePlan(input);
    if (!planned.ok()) continue;
    need.gpus = gpus;
    need.memory_bytes = GpuBytes(job, planned->memory.reserved());
    if (FindGpu(gpu) != nullptr) need.tokens_per_second = planned->tokens_per_second;
    return need;
  }
  return need;
}

}  // namespace

std::vector<Need> NeedsOf(const ModelConfig& model, std::string_view gpu_type, int64_t gpu_memory) {
  if (model.layers > kMostPlannedLayers) return {};
  std::vector<Need> needs = {SmallestNeed(model, gpu_type, gpu_memory)};
  const bool in_4_bits = model.stored.form == StoredForm::kNf4;
  const std::vector<Method> fastest =
      in_4_bits ? std::vector{Method::kQlora} : std::vector{Method::kLora, Method::kFull};
  for (const Method method : fastest) {
    needs.push_back(FastestNeed(method, model, gpu_type, gpu_memory));
  }
  // Nothing is said of a job that cannot be planned.
  std::erase_if(needs, [](const Need& need) { return need.memory_bytes == 0; });
  return needs;
}

std::string StoredText(const ModelConfig& model, int64_t bytes) {
  if (model.stored.form == StoredForm::kNf4) return "bnb 4-bit";
  if (model.stored.form == StoredForm::kFp8) return "FP8";
  if (model.stored.form == StoredForm::kMxfp4) return "MXFP4";
  for (const auto& [name, text] : {std::pair("bfloat16", "bf16"), std::pair("float16", "fp16"),
                                   std::pair("float32", "fp32")}) {
    if (model.dtype == name) return text;
  }
  if (bytes == 0) return "";
  return bytes < 3 * BaseParameters(model) ? "16 bits" : "fp32";
}

}  // namespace sft::plan
