#include "server/scheduling/planning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/bytes.h"
#include "common/base/json.h"
#include "common/base/round.h"
#include "common/hub/model_name.h"
#include "common/plan/memory.h"
#include "common/plan/model_config.h"
#include "common/plan/parameters.h"
#include "common/plan/plan.h"
#include "common/plan/targets.h"
#include "common/plan/tensors.h"
#include "common/spec/batch.h"
#include "common/spec/job_json.h"
#include "common/spec/job_protocol.h"
#include "server/core/convert.h"
#include "server/core/costs.h"
#include "server/resume/job_folders.h"
#include "server/scheduling/dependencies.h"
#include "server/scheduling/expectations.h"
#include "server/scheduling/scheduler_input.h"
#include "server/scheduling/scheduler_jobs.h"
#include "server/scheduling/time_limits.h"
#include "server/state/names.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"
#include "server/store/prices.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

constexpr char kCpuType[] = "CPU";
constexpr std::chrono::seconds kFetchPatience{3};
constexpr size_t kMaxConfigBytes = 1 << 20;
// The most nodes that are asked for a model which none of them listed.
constexpr size_t kMaxAsked = 4;

void AddMemory(const std::vector<plan::MemoryItem>& items, v1::JobPlan& plan) {
  for (const plan::MemoryItem& item : items) {
    auto* added = plan.add_memory();
    added->set_category(item.category);
    added->set_bytes(item.bytes);
  }
}

// Seconds of a job outside its steps: start, weights, data, delivery.
constexpr double kAroundSteps = 60;
constexpr double kMaxRunSeconds = 1e9;

int64_t StepsOf(const spec::JobSpec& spec, int64_t rows) {
  const auto& h = spec.hyperparameters;
  if (h.max_steps > 0) return h.max_steps;
  // KTO makes two samples of a pair.
  const int64_t most = spec.data.max_examples * (spec.training.loss == spec::Loss::kKto ? 2 : 1);
  if (most > 0) rows = std::min(rows, most);
  // How many documents, or sequences, rows become is known once they are read.
  const bool whole = spec.data.text_documents == spec::TextDocuments::kWhole;
  if (rows <= 0 || h.global_batch <= 0 || spec.data.packing || !whole) return 0;
  return spec::StepsOfEpochs(h.n_epochs, CeilDiv(rows, h.global_batch));
}

plan::PlanInput InputOf(const plan::ModelShape& shape, const spec::JobSpec& spec, int64_t memory) {
  return {.shape = shape,
          .job = spec,
          .gpu = plan::NearestGpu(spec.compute.gpu_type),
          .memory_bytes = plan::AllocatorBytes(spec, memory, /*opened=*/false)};
}

// What a process that answers prompts or exports holds of the base: fp32 on a CPU, bf16 on a GPU;
// with generate.nf4 its linear layers are in NF4, with a scale for each 64 weights.
int64_t WeightBytes(const plan::ModelShape& shape, const spec::JobSpec& spec) {
  constexpr double kNf4Bytes = 0.57;
  const int64_t bytes = spec.compute.gpu_type == kCpuType ? 4 : 2;
  if (!spec.generate.nf4) return plan::BaseParameters(shape) * bytes;
  int64_t linear = 0;
  for (const plan::TensorUnit& unit : plan::TensorsOf(shape)) {
    for (const plan::TensorInfo& tensor : unit.tensors) {
      if (tensor.role == plan::TensorRole::kLinear) linear += tensor.elements();
    }
  }
  return (plan::BaseParameters(shape) - linear) * bytes +
         static_cast<int64_t>(static_cast<double>(linear) * kNf4Bytes);
}

// Fills in the job's memory and, for GPUs of `gpu_memory` bytes, how it would run.
absl::Status FillShapes(const std::string& config, const spec::JobSpec& spec, int64_t gpu_memory,
                        v1::JobPlan& plan) {
  SFT_ASSIGN_OR_RETURN(const plan::ModelConfig model, plan::ParseModelConfig(config));
  plan.set_active_parameters(plan::ActiveParameters(model));
  if (!spec.trains()) {
    AddMemory({{"weights", WeightBytes(model, spec)}}, plan);
    plan.set_total_parameters(plan::BaseParameters(model));
    return absl::OkStatus();
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<plan::Unit> units, plan::MakeUnits(model, spec));
  const plan::ParameterCounts counts = plan::CountParameters(units);
  plan.set_trainable_parameters(counts.trainable);
  plan.set_total_parameters(counts.total);
  const bool on_cpu = spec.compute.gpu_type == kCpuType;
  if (on_cpu || gpu_memory == 0) {
    const auto device = on_cpu ? plan::Device::kCpu : plan::Device::kGpu;
    SFT_ASSIGN_OR_RETURN(const plan::StageMap stages, plan::DivideModel(model, spec));
    AddMemory(plan::Items(plan::PlanMemory(plan::FullestStage(units, stages, spec), spec, device)),
              plan);
    if (stages.stages > 1) plan.set_execution(plan::DescribeStages(stages, spec));
    return absl::OkStatus();
  }
  const plan::PlanInput input = InputOf(model, spec, gpu_memory);
  SFT_ASSIGN_OR_RETURN(const plan::Plan planned, plan::MakePlan(input));
  AddMemory(plan::Items(planned.memory), plan);
  plan.set_batch(BatchArithmetic(plan::WithBatch(spec, planned.execution)));
  plan.set_execution(plan::Describe(planned, spec, model.layers));
  plan.set_memory_limit_bytes(input.memory_bytes);
  if (const plan::GpuRates* gpu = plan::FindGpu(spec.compute.gpu_type); gpu != nullptr) {
    plan.set_tokens_per_second(planned.tokens_per_second);
    plan.set_speed_from_peaks(!gpu->measured);
  }
  return absl::OkStatus();
}

}  // namespace

std::string PlanKey(const spec::JobSpec& spec, int64_t memory, const std::string& config) {
  // Clear the settings that do not change a step's time.
  spec::JobSpec same = spec;
  same.job = {};
  same.scheduling = {};
  same.data = {};
  same.hyperparameters.learning_rate = 0;
  same.hyperparameters.seed = 0;
  return fmt::format("{} {} {}", memory, DumpJson(spec::ToJson(same)), config);
}

std::string BatchArithmetic(const spec::JobSpec& spec) {
  const auto& h = spec.hyperparameters;
  const auto number = [](int value) {
    return value == 0 ? std::string("auto") : std::to_string(value);  // the plan chooses
  };
  return fmt::format("{} x {} x {} = {}", number(h.per_device_batch), spec.data_ranks(),
                     number(h.gradient_accumulation_steps), h.global_batch);
}

absl::StatusOr<std::string> Planner::FetchConfig(const std::string& node,
                                                 const std::string& model) {
  // The caller has already checked that the submitter may read the path.
  SFT_ASSIGN_OR_RETURN(const auto transfer,
                       relay_.Start(node, model + "/config.json", 0, JobsInPaths({model})));
  std::string config;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const v1::SendFileRequest chunk, transfer->Next(kFetchPatience));
    if (chunk.request().empty()) return config;
    config += chunk.data();
    if (config.size() > kMaxConfigBytes) {
      return InvalidArgument(fmt::format("{}/config.json is larger than 1 MiB", model));
    }
  }
}

absl::StatusOr<std::string> Planner::FindConfig(const spec::JobSpec& spec) {
  SFT_ASSIGN_OR_RETURN(const auto model, fleet_.FindModel(spec.job.model));
  if (model != nullptr) return model->config_json;
  if (const auto name = hub::ParseModelName(spec.job.model); name && hub_ != nullptr) {
    if (auto asked = hub_->ConfigOf(*name)) return *std::move(asked);
  }
  absl::StatusOr<std::string> config =
      Unavailable(fmt::format("model {} is not seen on any connected node", spec.job.model));
  if (!IsModelPath(spec.job.model)) return config;
  SFT_ASSIGN_OR_RETURN(const auto fleet, fleet_.Get());
  const auto type = fleet->types.find(spec.compute.gpu_type);
  if (type == fleet->types.end()) return config;
  size_t asked = 0;
  for (const std::string& node : type->second.nodes) {
    if (!registry_.Get(node).connected) continue;
    if (++asked > kMaxAsked) break;
    config = FetchConfig(node, spec.job.model);
    if (!absl::IsNotFound(config.status())) return config;
  }
  return config;
}

std::optional<spec::Problem> Planner::CheckModel(const spec::JobSpec& spec, bool complete) {
  const absl::StatusOr<std::string> config = FindConfig(spec);
  if (absl::IsNotFound(config.status()) || absl::IsInvalidArgument(config.status())) {
    return spec::Problem{"job.model", 0, std::string(Message(config.status()))};
  }
  if (!config.ok()) return std::nullopt;
  const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(*config);
  if (!model.ok()) {
    return spec::Problem{"job.model", 0,
                         fmt::format("{}: {}", spec.job.model, Message(model.status()))};
  }
  if (!spec.trains()) return complete ? CheckWeightsFit(*model, spec) : std::nullopt;
  if (auto problem = plan::CheckJob(*model, spec)) return problem;
  if (auto problem = plan::CheckStages(*model, spec)) return problem;
  return complete ? CheckFits(*model, spec) : std::nullopt;
}

std::vector<spec::Problem> Planner::WarnOfModel(const spec::JobSpec& spec) {
  if (!spec.trains()) return {};  // rows have no given length
  std::vector<spec::Problem> warnings = plan::WarnOfStages(spec);
  const absl::StatusOr<std::string> config = FindConfig(spec);
  if (!config.ok()) return warnings;
  const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(*config);
  if (!model.ok()) return warnings;
  for (spec::Problem& warning : plan::WarnOfTargets(*model, spec)) {
    warnings.push_back(std::move(warning));
  }
  const int64_t asked = spec.hyperparameters.sequence_length;
  if (model->max_positions > 0 && asked > model->max_positions) {
    warnings.push_back(
        {"hyperparameters.sequence_length", 0,
         fmt::format("sequence_length = {} is more than the {} positions that {} was made for "
                     "(max_position_embeddings of its config.json): the result may be poor for "
                     "rows that are longer",
                     asked, model->max_positions, spec.job.model)});
  }
  return warnings;
}

v1::JobPlan Planner::Plan(const spec::JobSpec& spec, const std::string& project, int64_t rows) {
  v1::JobPlan plan;
  plan.set_variant(spec.compute.variant);
  plan.set_nodes(spec.compute.nodes);
  plan.set_ranks(spec.compute.gpu_count);
  if (spec.trains()) plan.set_batch(BatchArithmetic(spec));
  sched::PendingJob job;
  job.id = "this job";
  job.gpu_type = spec.compute.gpu_type;
  job.gpus_per_node = spec.compute.gpus_per_node;
  job.nodes = spec.compute.nodes;
  NameModel(spec.job.model, job);
  const spec::ProtocolNeed need = spec::NeedOf(spec);
  job.protocol = need.protocol;
  job.newer_keys = fmt::format("{}", fmt::join(need.keys, ", "));
  job.project = project;
  job.priority = static_cast<int>(spec.scheduling.priority);
  job.exclusive = spec.scheduling.exclusive;
  job.expected_us = ExpectedRun(spec, rows).duration_us;
  job.bound_us = static_cast<int64_t>(static_cast<double>(job.expected_us) * kBoundFactor);
  sched::Snapshot snapshot;
  PriceList prices;
  const absl::Status previewed = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(SchedulerInput input,
                         ReadSchedulerInput(db, registry_, registry_.now_us(), {}));
    snapshot = std::move(input.snapshot);
    SFT_ASSIGN_OR_RETURN(prices, store::ReadPrices(db));
    job.submitted_us = snapshot.now_us;
    return absl::OkStatus();
  });
  if (previewed.ok()) {
    // Outside of the transaction: a long queue takes a while.
    const sched::Outlook outlook = sched::Preview(snapshot, job);
    plan.set_placement(outlook.text);
    plan.mutable_outlook()->set_place(outlook.place);
    plan.mutable_outlook()->set_source("plan");
    const auto set = [](int64_t time_us, google::protobuf::Timestamp* time) {
      *time = ToTimestamp(time_us);
    };
    if (outlook.start_us > 0) set(outlook.start_us, plan.mutable_outlook()->mutable_start_time());
    if (outlook.end_us > 0) set(outlook.end_us, plan.mutable_outlook()->mutable_end_time());
    auto cost = PlannedCost(prices, job.gpu_type, job.gpus(),
                            std::max(outlook.start_us, snapshot.now_us), job.expected_us);
    if (cost.has_value()) *plan.mutable_cost() = *std::move(cost);
  } else {
    plan.set_placement("not known: " + std::string(Message(previewed)));
  }
  const absl::StatusOr<std::string> config = FindConfig(spec);
  const absl::Status filled =
      config.ok() ? FillShapes(*config, spec, GpuMemory(spec), plan) : config.status();
  if (!filled.ok()) {
    plan.set_note("parameters and memory are not known: " + std::string(Message(filled)));
  }
  return plan;
}

int64_t Planner::GpuMemory(const spec::JobSpec& spec) {
  const auto fleet = fleet_.Get();
  if (!fleet.ok()) return 0;
  const auto type = (*fleet)->types.find(spec.compute.gpu_type);
  return type == (*fleet)->types.end() ? 0 : type->second.memory;
}

double Planner::StepSeconds(const spec::JobSpec& spec) {
  const plan::GpuRates* gpu = plan::FindGpu(spec.compute.gpu_type);
  if (spec.compute.gpu_type == kCpuType || gpu == nullptr || !gpu->measured) return 0;
  const absl::StatusOr<std::string> config = FindConfig(spec);
  const int64_t memory = GpuMemory(spec);
  if (!config.ok() || memory == 0) return 0;
  const std::string key = PlanKey(spec, memory, *config);
  {
    const MutexLock lock(mutex_);
    const auto found = step_seconds_.find(key);
    if (found != step_seconds_.end()) return found->second;
  }
  const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(*config);
  if (!model.ok()) return 0;
  const absl::StatusOr<plan::Plan> planned = plan::MakePlan(InputOf(*model, spec, memory));
  const double seconds = planned.ok() ? planned->time.total() : 0;
  const MutexLock lock(mutex_);
  if (step_seconds_.size() >= kMostKnownPlans) step_seconds_.clear();
  step_seconds_[key] = seconds;
  return seconds;
}

Planner::Run Planner::ExpectedRun(const spec::JobSpec& spec, int64_t rows) {
  Run run;
  if (!spec.trains()) return run;  // how long it takes is not known
  run.steps = StepsOf(spec, rows);
  const double step = run.steps > 0 ? StepSeconds(spec) : 0;
  if (step <= 0) return run;
  const double seconds = kAroundSteps + step * static_cast<double>(run.steps);
  run.duration_us = static_cast<int64_t>(std::min(seconds, kMaxRunSeconds) * 1e6);
  return run;
}

spec::JobSpec Planner::ChoosePrecision(const spec::JobSpec& spec) {
  if (!spec.trains()) return spec;
  using spec::MasterWeights;
  using spec::Optimizer;
  spec::JobSpec chosen = spec;
  auto& optimizer = chosen.hyperparameters.optimizer;
  if (optimizer == Optimizer::kAuto) optimizer = Optimizer::kAdamW;
  const bool asked =
      spec.hyperparameters.optimizer == Optimizer::kAuto ||
      (spec.full_finetune() && spec.hyperparameters.master_weights == MasterWeights::kAuto);
  if (!asked || spec.compute.gpu_type == kCpuType) return chosen;
  const int64_t memory = GpuMemory(spec);
  if (memory == 0) return chosen;
  const absl::StatusOr<std::string> config = FindConfig(spec);
  if (!config.ok()) return chosen;
  const absl::StatusOr<plan::ModelConfig> model = plan::ParseModelConfig(*config);
  return model.ok() ? plan::WithPrecision(InputOf(*model, spec, memory)) : chosen;
}

std::optional<spec::Problem> Planner::CheckWeightsFit(const plan::ModelShape& shape,
                                                      const spec::JobSpec& spec) {
  const int64_t memory = spec.compute.gpu_type == kCpuType ? 0 : GpuMemory(spec);
  const int64_t weights = WeightBytes(shape, spec);
  if (memory == 0 || weights <= memory) return std::nullopt;
  return spec::Problem{
      "compute.gpu_type", 0,
      fmt::format("the weights of {} take {} on each GPU, which has {}: answering needs a larger "
                  "GPU",
                  spec.job.model, BytesText(weights), BytesText(memory))};
}

std::optional<spec::Problem> Planner::CheckFits(const plan::ModelShape& shape,
                                                const spec::JobSpec& spec) {
  if (spec.compute.gpu_type == kCpuType) return std::nullopt;
  const int64_t memory = GpuMemory(spec);
  if (memory == 0) return std::nullopt;
  const plan::PlanInput input = InputOf(shape, spec, memory);
  const absl::Status planned = plan::MakePlan(input).status();
  // How layers lie on GPUs may depend on these.
  if (absl::IsInvalidArgument(planned) && spec.parallelism.pipeline_parallel_size > 1) {
    return spec::Problem{"hyperparameters.parallelism.device_map", 0,
                         std::string(Message(planned))};
  }
  if (!absl::IsResourceExhausted(planned)) return std::nullopt;
  spec::JobSpec unbound = spec;
  unbound.compute.memory_budget_gb = 0;
  const bool bound = plan::AllocatorBytes(unbound, memory, /*opened=*/false) > input.memory_bytes;
  return spec::Problem{bound ? "compute.memory_budget_gb" : "compute.gpu_type", 0,
                       std::string(Message(planned))};
}

}  // namespace sft::server
