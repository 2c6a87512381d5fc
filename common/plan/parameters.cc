#include "common/plan/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "common/base/round.h"

namespace sft::plan {
namespace {

struct Linear {
  std::string_view name;
  int64_t out = 0;
  int64_t in = 0;
  bool bias = false;
};

std::vector<Linear> BlockLinears(const ModelShape& s) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  return {{"self_attn.q_proj", q, s.hidden, s.qkv_bias},
          {"self_attn.k_proj", kv, s.hidden, s.qkv_bias},
          {"self_attn.v_proj", kv, s.hidden, s.qkv_bias},
          {"self_attn.o_proj", s.hidden, q, s.output_bias},
          {"mlp.gate_proj", s.intermediate, s.hidden, s.mlp_bias},
          {"mlp.up_proj", s.intermediate, s.hidden, s.mlp_bias},
          {"mlp.down_proj", s.hidden, s.intermediate, s.mlp_bias}};
}

std::optional<spec::Problem> CheckTargets(const ModelShape& shape, const spec::JobSpec& job) {
  const std::vector<Linear> linears = BlockLinears(shape);
  for (const std::string& target : job.lora.target_modules) {
    bool found = false;
    for (int64_t layer = 0; layer < shape.layers && !found; ++layer) {
      found = std::any_of(linears.begin(), linears.end(), [&](const Linear& linear) {
        return MatchesTarget(fmt::format("model.layers.{}.{}", layer, linear.name), target);
      });
    }
    if (found) continue;
    std::string names;
    for (const Linear& linear : linears) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ",
                           linear.name.substr(linear.name.find('.') + 1));
    }
    return spec::Problem{
        "lora.target_modules", 0,
        fmt::format("\"{}\" matches no linear of this {} model; it has {}, and \"all-linear\" "
                    "takes all",
                    target, shape.family, names)};
  }
  return std::nullopt;
}

Unit MakeBlock(const ModelShape& shape, const spec::JobSpec& job, int64_t layer) {
  const bool full = job.full_finetune();
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  Unit unit;
  const auto base = [&](std::string name, int64_t elements, bool quantized = false,
                        int64_t rows = 0) {
    unit.parameters.push_back({prefix + std::move(name), elements, full, quantized, false, rows});
  };
  base("input_layernorm.weight", shape.hidden);
  base("post_attention_layernorm.weight", shape.hidden);
  if (shape.qk_norm) {
    base("self_attn.q_norm.weight", shape.head_dim);
    base("self_attn.k_norm.weight", shape.head_dim);
  }
  for (const Linear& linear : BlockLinears(shape)) {
    const std::string module = prefix + std::string(linear.name);
    base(std::string(linear.name) + ".weight", linear.out * linear.in, job.qlora(), linear.out);
    const auto& targets = job.lora.target_modules;
    const bool adapted = !full && std::any_of(targets.begin(), targets.end(), [&](const auto& t) {
      return MatchesTarget(module, t);
    });
    const bool bias_trained = full || job.lora.bias == spec::Bias::kAll ||
                              (adapted && job.lora.bias == spec::Bias::kLoraOnly);
    if (linear.bias) {
      unit.parameters.push_back({module + ".bias", linear.out, bias_trained, false, false});
    }
    if (!adapted) continue;
    const int64_t r = job.lora.r;
    unit.parameters.push_back({module + ".lora_A.weight", r * linear.in, true, false, true});
    unit.parameters.push_back({module + ".lora_B.weight", linear.out * r, true, false, true});
  }
  return unit;
}

std::vector<Unit> UnitsOf(const ModelShape& shape, const spec::JobSpec& job) {
  const bool full = job.full_finetune();
  std::vector<Unit> units;
  const int64_t table = shape.vocab * shape.hidden;
  units.push_back({{{"model.embed_tokens.weight", table, full, false, false}}});
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    units.push_back(MakeBlock(shape, job, layer));
  }
  units.push_back({{{"model.norm.weight", shape.hidden, full, false, false}}});
  if (!shape.tied_head) {
    units.back().parameters.push_back({"lm_head.weight", table, full, false, false});
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
  if (job.full_finetune()) return CheckOptimizer(shape, job);
  if (auto problem = CheckTargets(shape, job)) return problem;
  return CheckOptimizer(shape, job);
}

bool MatchesTarget(std::string_view module, std::string_view target) {
  if (target == "all-linear") return true;
  if (!module.ends_with(target)) return false;
  return module.size() == target.size() || module[module.size() - target.size() - 1] == '.';
}

absl::StatusOr<std::vector<Unit>> MakeUnits(const ModelShape& shape, const spec::JobSpec& job) {
  if (const auto problem = CheckJob(shape, job)) {
    return InvalidArgument(fmt::format("{}: {}", problem->key, problem->message));
  }
  return UnitsOf(shape, job);
}

int64_t RowStride(int64_t columns, int64_t spare) {
  return spare == 0 ? columns : RoundUp(columns + spare, 64);
}

BlockMatrices MatricesOf(const ModelShape& shape, const spec::JobSpec& job) {
  BlockMatrices block;
  BlockMatrices::Matrix* const places[] = {&block.qkv,     &block.qkv,     &block.qkv, &block.o,
                                           &block.gate_up, &block.gate_up, &block.down};
  const std::vector<Linear> linears = BlockLinears(shape);
  for (size_t i = 0; i < linears.size(); ++i) {
    const auto& targets = job.lora.target_modules;
    bool adapted = false;
    for (int64_t layer = 0; layer < shape.layers && !adapted && !job.full_finetune(); ++layer) {
      const std::string module = fmt::format("model.layers.{}.{}", layer, linears[i].name);
      adapted = std::any_of(targets.begin(), targets.end(),
                            [&](const auto& target) { return MatchesTarget(module, target); });
    }
    places[i]->rows += linears[i].out;
    places[i]->columns = linears[i].in;
    if (adapted) places[i]->rank += job.lora.r;
  }
  return block;
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
  int64_t block = 2 * shape.hidden + (shape.qk_norm ? 2 * shape.head_dim : 0);
  for (const Linear& linear : BlockLinears(shape)) {
    block += linear.out * linear.in + (linear.bias ? linear.out : 0);
  }
  return shape.vocab * shape.hidden * (shape.tied_head ? 1 : 2) + shape.hidden +
         shape.layers * block;
}

}  // namespace sft::plan
