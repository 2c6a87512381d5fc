#include "common/plan/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "common/base/round.h"
#include "common/plan/context.h"
#include "common/plan/targets.h"
#include "common/plan/tensor.h"
#include "common/plan/tensors.h"
#include "common/plan/whole_modules.h"
#include "common/spec/module_patterns.h"

namespace sft::plan {
namespace {

bool Contains(const std::vector<std::string>& targets, std::string_view target) {
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

// What the job adapts; nothing in full fine-tuning.
std::vector<std::string> TargetsOf(const ModelShape& shape, const spec::JobSpec& job) {
  if (job.full_finetune()) return {};
  return EffectiveTargets(LinearsOf(shape), job.lora.target_modules);
}

// A job whose patterns cannot be understood was refused (CheckJob): of it the others count.
spec::LoraSizes SizesOf(const spec::JobSpec& job) {
  absl::StatusOr<spec::LoraSizes> sizes = spec::LoraSizes::Make(job.lora);
  if (sizes.ok()) return *std::move(sizes);
  spec::JobSpec::Lora plain = job.lora;
  plain.rank_pattern.clear();
  plain.alpha_pattern.clear();
  return *spec::LoraSizes::Make(plain);
}

std::optional<spec::Problem> CheckPatterns(const ModelShape& shape, const spec::JobSpec& job) {
  if (job.lora.rank_pattern.empty() && job.lora.alpha_pattern.empty()) return std::nullopt;
  const absl::StatusOr<spec::LoraSizes> sizes = spec::LoraSizes::Make(job.lora);
  if (!sizes.ok()) return std::nullopt;  // refused with the job's own keys
  const std::vector<std::string> targets = TargetsOf(shape, job);
  std::vector<std::string> adapted;
  for (const std::string& module : LinearsOf(shape)) {
    if (MatchesAny(module, targets)) adapted.push_back(RuntimeModule(shape.prefix, module));
  }
  return sizes->FindIdle(adapted);
}

// What PEFT adapts as parameters; empty for a model without experts.
std::vector<std::string> ParametersOfPeft(const ModelShape& shape) {
  std::vector<std::string> modules;
  if (!shape.HasExperts()) return modules;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const TensorInfo& tensor : BlockTensors(shape, layer).tensors) {
      if (tensor.role == TensorRole::kLinear &&
          PeftAdaptsAsParameter(tensor.module(), tensor.experts)) {
        modules.push_back(tensor.module());
      }
    }
  }
  return modules;
}

std::optional<spec::Problem> CheckBalance(const ModelShape& shape, const spec::JobSpec& job) {
  if (job.hyperparameters.router_aux_loss_coef == 0) return std::nullopt;
  const bool softmax = shape.router.weights == RouterWeights::kSoftmaxOfTopK ||
                       shape.router.weights == RouterWeights::kSoftmaxOfAll;
  if (shape.HasExperts() && softmax) return std::nullopt;
  return spec::Problem{
      "hyperparameters.router_aux_loss_coef", 0,
      fmt::format("{}: leave it out",
                  shape.HasExperts()
                      ? fmt::format("the routers of {} models are balanced by their correction, "
                                    "which training leaves as it is",
                                    shape.family)
                      : fmt::format("this {} model has no experts", shape.family))};
}

// Products in FP8 that a job cannot have.
std::optional<spec::Problem> CheckFp8(const ModelShape& shape, const spec::JobSpec& job) {
  if (!job.fp8()) return std::nullopt;
  const auto problem = [&](std::string_view why) {
    return spec::Problem{"training.matmul", 0, fmt::format("{}: use matmul = \"bf16\"", why)};
  };
  if (shape.HasExperts() && job.full_finetune()) {
    return problem(
        fmt::format("experts are not trained with products in FP8, and this {} model "
                    "has experts, whose gradients would need them by columns",
                    shape.family));
  }
  const std::vector<std::string> linears = LinearsOf(shape);
  const auto gate = std::ranges::find_if(
      linears, [](const std::string& linear) { return LastName(linear) == "shared_expert_gate"; });
  if (gate != linears.end()) {
    return problem(
        fmt::format("products in FP8 need multiples of 16, and {} of this {} model has one output",
                    LastName(*gate), shape.family));
  }
  if (!job.fp8_frozen()) return std::nullopt;
  const spec::Sharding sharding = job.parallelism.sharding;
  if (sharding == spec::Sharding::kFullShard || sharding == spec::Sharding::kHybridShard ||
      job.parallelism.offload_param) {
    return problem(
        "frozen weights in FP8 are whole on every GPU, and this job's are cut over the GPUs or "
        "stay in host memory. Choose another sharding without offload_param");
  }
  return std::nullopt;
}

// What jobs cannot have of the experts of a model.
std::optional<spec::Problem> CheckStacks(const ModelShape& shape, const spec::JobSpec& job) {
  const std::vector<std::string> modules = ParametersOfPeft(shape);
  if (modules.empty()) return std::nullopt;
  if (job.full_finetune() || (!job.lora.use_dora && job.lora.dropout == 0)) return std::nullopt;
  const std::vector<std::string> targets = TargetsOf(shape, job);
  const auto adapted = std::find_if(modules.begin(), modules.end(), [&](const std::string& module) {
    return MatchesAny(module, targets);
  });
  if (adapted == modules.end()) return std::nullopt;
  const auto problem = [&](const char* key, const char* what, const char* remedy) {
    return spec::Problem{
        key, 0,
        fmt::format(
            "{} is not supported for adapters of feed-forward layers in a model with experts (PEFT "
            "has none there), and lora.target_modules takes {}: use {}, or target_modules = "
            "[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"]",
            what, *adapted, remedy)};
  };
  return job.lora.use_dora ? problem("lora.use_dora", "DoRA", "use_dora = false")
                           : problem("lora.dropout", "dropout", "dropout = 0");
}

Unit MakeUnit(const ModelShape& shape, const TensorUnit& tensors, const spec::JobSpec& job,
              const std::vector<std::string>& targets, const spec::LoraSizes& sizes) {
  const bool full = job.full_finetune();
  // A checkpoint in 4 bits is kept as it is: its plain weights are not quantised, and experts in 4
  // bits are not read (ExpertInFourBits).
  const bool as_stored = shape.stored.form == StoredForm::kNf4;
  // The parts of a matrix that is cut have their blocks' scales in fp32.
  const bool double_quant =
      (as_stored ? shape.stored.double_quant : job.quantization.double_quant) &&
      job.parallelism.tensor_parallel_size == 1;
  Unit unit;
  for (const TensorInfo& tensor : tensors.tensors) {
    const bool linear = tensor.role == TensorRole::kLinear;
    const bool adapted = MatchesAny(tensor.module(), targets);
    const bool bias_trained =
        tensor.role == TensorRole::kBias && tensor.experts == 0 &&
        (job.lora.bias == spec::Bias::kAll || (adapted && job.lora.bias == spec::Bias::kLoraOnly));
    const std::string module = RuntimeModule(shape.prefix, tensor.module());
    const bool whole = TrainsWhole(module, module == TiedTo(shape), job.lora);
    const bool trained = tensor.role != TensorRole::kConstant && (full || bias_trained || whole);
    const bool in_files = tensor.experts == 0 && shape.stored.Holds(shape.prefix, tensor.module());
    const bool quantized = linear && job.qlora() && (!as_stored || in_files);
    unit.parameters.push_back(
        {.name = tensor.name,
         .elements = tensor.elements(),
         .trainable = trained,
         .quantized = quantized,
         .rows = linear ? tensor.shape[0] : 0,
         .double_quant = quantized && double_quant,
         .mxfp4 = quantized && tensor.experts > 0 && shape.stored.form == StoredForm::kMxfp4});
    if (!linear || !adapted) continue;
    const int64_t r = sizes.RankOf(module), out = tensor.shape[0], in = tensor.shape[1];
    unit.parameters.push_back({.name = tensor.module() + ".lora_A.weight",
                               .elements = std::max<int64_t>(tensor.experts, 1) * r * in,
                               .trainable = true,
                               .adapter = true});
    unit.parameters.push_back({.name = tensor.module() + ".lora_B.weight",
                               .elements = out * r,
                               .trainable = true,
                               .adapter = true});
    if (!job.lora.use_dora) continue;
    unit.parameters.push_back({.name = tensor.module() + ".lora_magnitude_vector",
                               .elements = out,
                               .trainable = true,
                               .adapter = true});
  }
  return unit;
}

std::vector<Unit> UnitsOf(const ModelShape& shape, const spec::JobSpec& job) {
  const std::vector<std::string> targets = TargetsOf(shape, job);
  const spec::LoraSizes sizes = SizesOf(job);
  std::vector<Unit> units;
  for (const TensorUnit& tensors : TensorsOf(shape)) {
    units.push_back(MakeUnit(shape, tensors, job, targets, sizes));
  }
  return units;
}

// The optimizer, like bitsandbytes, keeps fp32 states for smaller tensors.
std::optional<spec::Problem> CheckOptimizer(const ModelShape& shape, const spec::JobSpec& job) {
  if (job.hyperparameters.optimizer != spec::Optimizer::kAdamW8bit) return std::nullopt;
  int64_t largest = 0;
  for (const Unit& unit : UnitsOf(shape, job)) {
    for (const Parameter& parameter : unit.parameters) {
      if (parameter.trainable) largest = std::max(largest, parameter.elements);
    }
  }
  if (largest >= kMinCodedElements) return std::nullopt;
  return spec::Problem{
      "hyperparameters.optimizer", 0,
      fmt::format("adamw_8bit keeps the states of tensors from {} elements in 8 bits, but the "
                  "largest that is trained has {}: use adamw",
                  kMinCodedElements, largest)};
}

}  // namespace

std::optional<spec::Problem> CheckJob(const ModelShape& shape, const spec::JobSpec& job) {
  const int64_t length = job.hyperparameters.sequence_length;
  if (shape.learned_positions > 0 && length > shape.learned_positions) {
    return spec::Problem{
        "hyperparameters.sequence_length", 0,
        fmt::format("{} is more than the {} positions that this {} model has a table of: use at "
                    "most {}",
                    length, shape.learned_positions, shape.family, shape.learned_positions)};
  }
  if (auto problem = CheckStored(shape.stored, job)) return problem;
  if (auto problem = CheckBalance(shape, job)) return problem;
  if (auto problem = CheckContext(shape, job)) return problem;
  if (auto problem = CheckTensor(shape, job)) return problem;
  if (auto problem = CheckFp8(shape, job)) return problem;
  if (auto problem = CheckStacks(shape, job)) return problem;
  if (job.full_finetune()) return CheckOptimizer(shape, job);
  if (auto problem = CheckTargets(shape, job)) return problem;
  if (auto problem = CheckPatterns(shape, job)) return problem;
  if (!job.lora.modules_to_save.empty()) {
    if (auto problem = CheckWholeModules(NamedModulesOf(shape), job.lora)) return problem;
  }
  return CheckOptimizer(shape, job);
}

bool PeftAdaptsAsParameter(std::string_view module, int64_t experts) {
  const std::string name = LastName(module);
  return experts > 0 || name == "gate_proj" || name == "up_proj" || name == "down_proj";
}

bool MatchesTarget(std::string_view module, std::string_view target) {
  if (target == "all-linear") return true;
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

std::vector<std::string> EffectiveTargets(const std::vector<std::string>& linears,
                                          const std::vector<std::string>& targets) {
  const auto found = [&](std::string_view target) {
    return std::any_of(linears.begin(), linears.end(),
                       [&](const std::string& linear) { return MatchesTarget(linear, target); });
  };
  std::vector<std::string> effective = targets;
  if (found(kGateUpStack) && Contains(targets, "gate_proj") && Contains(targets, "up_proj")) {
    std::erase_if(effective, [&](const std::string& target) {
      return (target == "gate_proj" || target == "up_proj") && !found(target);
    });
    effective.emplace_back(kGateUpStack);
  }
  if (targets != spec::JobSpec::Lora().target_modules) return effective;
  return std::all_of(effective.begin(), effective.end(), found)
             ? effective
             : std::vector<std::string>{"all-linear"};
}

absl::StatusOr<std::vector<Unit>> MakeUnits(const ModelShape& shape, const spec::JobSpec& job) {
  if (const auto problem = CheckJob(shape, job)) {
    return InvalidArgument(fmt::format("{}: {}", problem->key, problem->message));
  }
  return UnitsOf(shape, job);
}

absl::StatusOr<std::vector<Unit>> MakeUnitsOfRank(const ModelShape& shape,
                                                  const spec::JobSpec& job) {
  if (const auto problem = CheckJob(shape, job)) {
    return InvalidArgument(fmt::format("{}: {}", problem->key, problem->message));
  }
  return UnitsOf(ShapeOfTensorRank(shape, job), job);
}

int64_t RowStride(int64_t columns, int64_t spare) {
  return spare == 0 ? columns : RoundUp(columns + spare, 64);
}

std::vector<BlockMatrices> MatricesOf(const ModelShape& shape, const spec::JobSpec& job) {
  std::vector<BlockMatrices> blocks(shape.layers);
  const std::vector<std::string> targets = TargetsOf(shape, job);
  const spec::LoraSizes sizes = SizesOf(job);
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    BlockMatrices& block = blocks[layer];
    const bool shared = shape.Layer(layer).shared > 0;
    BlockMatrices::Matrix* const places[] = {&block.qkv,
                                             &block.o,
                                             &block.gate_up,
                                             &block.down,
                                             shared ? &block.shared_gate_up : &block.input_gate,
                                             shared ? &block.shared_down : &block.input_projection,
                                             &block.shared_output_gate};
    const TensorUnit unit = BlockTensors(shape, layer);
    for (size_t i = 0; i < unit.shared_matrices.size(); ++i) {
      for (const int position : unit.shared_matrices[i]) {
        const TensorInfo& tensor = unit.tensors[position];
        places[i]->rows += tensor.shape[0] / std::max<int64_t>(tensor.experts, 1);
        places[i]->columns = tensor.shape[1];
        places[i]->experts = tensor.experts;
        if (!MatchesAny(tensor.module(), targets)) continue;
        places[i]->rank += sizes.RankOf(RuntimeModule(shape.prefix, tensor.module()));
      }
    }
  }
  return blocks;
}

ParameterCounts CountParameters(const std::vector<Unit>& units) {
  ParameterCounts counts;
  for (const Unit& unit : units) {
    for (const Parameter& parameter : unit.parameters) {
      if (!parameter.adapter) counts.total += parameter.elements;
      if (parameter.trainable) counts.trainable += parameter.elements;
    }
  }
  return counts;
}

int64_t BaseParameters(const ModelShape& shape) {
  int64_t elements = 0;
  for (const TensorUnit& unit : TensorsOf(shape)) {
    for (const TensorInfo& tensor : unit.tensors) elements += tensor.elements();
  }
  return elements;
}

int64_t ActiveParameters(const ModelShape& shape) {
  int64_t elements = BaseParameters(shape);
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const LayerShape sizes = shape.Layer(layer);
    if (sizes.experts == 0) continue;
    for (const TensorInfo& tensor : BlockTensors(shape, layer).tensors) {
      if (tensor.experts == 0) continue;
      elements -= tensor.elements() / sizes.experts * (sizes.experts - sizes.chosen);
    }
  }
  return elements;
}

}  // namespace sft::plan
