#include "worker/engine/model/adapters.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "common/plan/parameters.h"
#include "common/plan/tensors.h"
#include "common/plan/whole_modules.h"
#include "common/spec/module_patterns.h"
#include "worker/engine/base/error.h"
#include "worker/engine/nn/dropout.h"

namespace sft::engine {

using plan::MatchesTarget;

namespace {

// "self_attn.q_proj" of "model.layers.3.self_attn.q_proj": what a user would name.
std::string ShortName(const UnitInfo& unit, std::string_view module) {
  if (module.starts_with(unit.name + ".")) return std::string(module.substr(unit.name.size() + 1));
  return std::string(module);
}

std::string LinearModules(const ModelLayout& layout) {
  std::set<std::string> names;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (param.role == ParamRole::kLinear) names.insert(ShortName(unit, param.module()));
    }
  }
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// Every target must name at least one linear layer of the blocks and nothing else.
void CheckTargets(const ModelLayout& layout, const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    bool matches = false;
    for (const UnitInfo& unit : layout.units) {
      for (const ParamInfo& param : unit.params) {
        if (param.role == ParamRole::kBias || !MatchesTarget(param.module(), target)) continue;
        if (param.role == ParamRole::kLinear) {
          matches = true;
        } else if (target != "all-linear") {
          throw UserError("lora.target_modules: \"" + target + "\" is " +
                              std::string(param.module()) +
                              ", which cannot be adapted: only linear layers of the blocks can",
                          "bad_target_module", "choose from " + LinearModules(layout));
        }
      }
    }
    if (!matches) {
      throw UserError("lora.target_modules: \"" + target + "\" matches no module of the model",
                      "bad_target_module", "choose from " + LinearModules(layout));
    }
  }
  if (targets.empty()) {
    throw UserError("lora.target_modules is empty", "bad_target_module",
                    "choose from " + LinearModules(layout));
  }
}

bool IsTarget(std::string_view module, const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    if (MatchesTarget(module, target)) return true;
  }
  return false;
}

spec::LoraSizes SizesOf(const spec::JobSpec::Lora& lora) {
  absl::StatusOr<spec::LoraSizes> sizes = spec::LoraSizes::Make(lora);
  if (!sizes.ok()) throw UserError(std::string(Message(sizes.status())), "bad_target_module");
  return *std::move(sizes);
}

void AdaptUnit(UnitInfo& unit, std::string_view prefix, const spec::JobSpec::Lora& lora,
               const spec::LoraSizes& sizes) {
  std::set<std::string> adapted;
  std::vector<ParamInfo> firsts, seconds, magnitudes;
  for (const ParamInfo& param : unit.params) {
    if (param.role != ParamRole::kLinear || !IsTarget(param.module(), lora.target_modules))
      continue;
    const std::string module(param.module());
    adapted.insert(module);
    const std::string at_run_time = plan::RuntimeModule(prefix, module);
    const int64_t rank = sizes.RankOf(at_run_time);
    const int64_t each = std::max<int64_t>(param.experts, 1);
    firsts.push_back(
        {module + ".lora_A.weight", {each * rank, param.shape[1]}, ParamRole::kLoraA, true});
    seconds.push_back({module + ".lora_B.weight", {param.shape[0], rank}, ParamRole::kLoraB, true});
    firsts.back().experts = seconds.back().experts = param.experts;
    seconds.back().joined = param.joined;
    seconds.back().scale_ratio = sizes.ScaleOf(at_run_time) / ScalingOf(lora).scale;
    if (!lora.use_dora) continue;
    magnitudes.push_back(
        {module + ".lora_magnitude_vector", {param.shape[0]}, ParamRole::kMagnitude, true});
  }
  for (ParamInfo& param : unit.params) {
    // Of experts PEFT knows none: they are parameters of other names to it.
    if (param.role != ParamRole::kBias || param.experts > 0) continue;
    param.trainable =
        lora.bias == spec::Bias::kAll ||
        (lora.bias == spec::Bias::kLoraOnly && adapted.contains(std::string(param.module())));
  }
  // The first factors of linears that share an input lie end to end: one product gives the
  // gradients of all.
  for (ParamInfo& factor : firsts) unit.params.push_back(std::move(factor));
  for (ParamInfo& factor : seconds) unit.params.push_back(std::move(factor));
  for (ParamInfo& magnitude : magnitudes) unit.params.push_back(std::move(magnitude));
}

void CheckPatterns(const ModelLayout& layout, const std::vector<std::string>& targets,
                   const spec::LoraSizes& sizes) {
  std::vector<std::string> adapted;
  for (const std::string& module : LinearsOf(layout)) {
    if (IsTarget(module, targets)) adapted.push_back(plan::RuntimeModule(layout.prefix(), module));
  }
  if (const auto problem = sizes.FindIdle(adapted)) {
    throw UserError(problem->key + ": " + problem->message, "bad_target_module");
  }
}

std::vector<int64_t> Shape(const at::Tensor& tensor) { return tensor.sizes().vec(); }

bool Has(const ModelLayout& layout, const std::string& name, const at::Tensor& value) {
  for (const UnitInfo& unit : layout.units) {
    const int param = unit.Find(name);
    if (param >= 0) return unit.params[param].shape == Shape(value);
  }
  return false;
}

// What lora.modules_to_save names is trained like a model of its own.
void TrainWholeModules(ModelLayout& layout, const spec::JobSpec::Lora& lora) {
  if (lora.modules_to_save.empty()) return;
  if (const auto problem = plan::CheckWholeModules(layout.named, lora)) {
    throw UserError(problem->key + ": " + problem->message, "bad_target_module");
  }
  for (UnitInfo& unit : layout.units) {
    for (ParamInfo& param : unit.params) {
      if (!param.of_base() || param.role == ParamRole::kConstant) continue;
      const std::string name = plan::RuntimeModule(layout.prefix(), param.module());
      param.trainable |= plan::TrainsWhole(name, name == layout.named.tied_to, lora);
    }
  }
}

}  // namespace

std::vector<std::string> LinearsOf(const ModelLayout& layout) {
  std::vector<std::string> linears;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (param.role == ParamRole::kLinear) linears.emplace_back(param.module());
    }
  }
  return linears;
}

void PrepareLayout(ModelLayout& layout, const spec::JobSpec& spec) {
  if (const auto problem = plan::CheckStored(layout.stored, spec)) {
    throw UserError(problem->key + ": " + problem->message, "bad_model",
                    "change the job, or give the original model");
  }
  if (spec.full_finetune()) {
    for (UnitInfo& unit : layout.units) {
      for (ParamInfo& param : unit.params) param.trainable = param.role != ParamRole::kConstant;
    }
    return;
  }
  spec::JobSpec::Lora lora = spec.lora;
  lora.target_modules = plan::EffectiveTargets(LinearsOf(layout), lora.target_modules);
  CheckTargets(layout, lora.target_modules);
  const spec::LoraSizes sizes = SizesOf(lora);
  CheckPatterns(layout, lora.target_modules, sizes);
  for (UnitInfo& unit : layout.units) {
    AdaptUnit(unit, layout.prefix(), lora, sizes);
    for (ParamInfo& param : unit.params) {
      param.quantized = spec.qlora() && param.role == ParamRole::kLinear;
    }
  }
  TrainWholeModules(layout, lora);
}

std::map<std::string, at::Tensor> AddAdapter(ModelLayout& layout, const Adapter& adapter) {
  std::map<std::string, at::Tensor> values = adapter.Values(layout.tied_head());
  for (const LoraPair& pair : adapter.pairs) {
    if (layout.IsOtherPart(pair.module)) continue;  // a vision tower's do not act on text
    bool found = false;
    for (UnitInfo& unit : layout.units) {
      const int weight = unit.Find(pair.module + ".weight");
      if (weight < 0 || unit.params[weight].role != ParamRole::kLinear) continue;
      const std::vector<int64_t>& shape = unit.params[weight].shape;
      if (pair.a.size(1) != shape[1] || pair.b.size(0) != shape[0]) break;
      if (pair.experts != unit.params[weight].experts) break;
      unit.params.push_back({pair.module + ".lora_A.weight", Shape(pair.a), ParamRole::kLoraA});
      unit.params.back().experts = pair.experts;
      unit.params.push_back({pair.module + ".lora_B.weight", Shape(pair.b), ParamRole::kLoraB});
      unit.params.back().experts = pair.experts;
      if (pair.scale != adapter.config.Scale()) {
        unit.params.back().scale_ratio = pair.scale / adapter.config.Scale();
      }
      if (pair.magnitude.defined()) {
        unit.params.push_back(
            {pair.module + ".lora_magnitude_vector", Shape(pair.magnitude), ParamRole::kMagnitude});
      }
      found = true;
      break;
    }
    if (!found) {
      throw UserError("the adapter changes " + pair.module +
                          ", which the model does not have as a linear layer of that shape",
                      "bad_adapter", "give the base model that the adapter was trained on");
    }
  }
  for (const auto& [name, value] : values) {
    if (!layout.IsOtherPart(name) && !Has(layout, name, value)) {
      throw UserError("the adapter sets " + name + ", which the model does not have in that shape",
                      "bad_adapter", "give the base model that the adapter was trained on");
    }
  }
  return values;
}

Adapter FitAdapter(const Adapter& adapter, const ModelLayout& layout, const spec::JobSpec& spec) {
  const spec::JobSpec::Lora& lora = spec.lora;
  const auto refuse = [](const std::string& what, const std::string& advice) {
    throw UserError("job.adapter: " + what, "bad_adapter", advice);
  };
  if (adapter.config.use_dora != lora.use_dora) {
    refuse(std::string("the adapter ") + (lora.use_dora ? "has no" : "has") + " DoRA",
           std::string("set lora.use_dora = ") + (lora.use_dora ? "false" : "true"));
  }
  std::map<std::string, LoraPair> old;
  for (const LoraPair& pair : adapter.pairs) old.emplace(pair.module, pair);
  std::set<std::string> trained;
  Adapter fitted{.config = adapter.config};
  fitted.config.r = lora.r;
  fitted.config.rank_pattern = lora.rank_pattern;
  fitted.config.alpha_pattern = lora.alpha_pattern;
  const spec::LoraSizes sizes = SizesOf(lora);
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (param.of_base() && param.trainable) trained.insert(param.name);
      if (param.role != ParamRole::kLoraA) continue;
      const std::string module(param.module());
      const ParamInfo& second = unit.params[unit.Find(module + ".lora_B.weight")];
      LoraPair pair{module, InitialFactor(param, spec.hyperparameters.seed, lora.init),
                    at::zeros(second.shape)};
      pair.experts = param.experts;
      const auto from = old.find(module);
      if (from == old.end() && lora.use_dora) {
        refuse("the adapter has nothing for " + module, "take it out of lora.target_modules");
      }
      if (from != old.end()) {
        const int64_t each = std::max<int64_t>(param.experts, 1);
        const int64_t r = from->second.a.size(0) / each, given = pair.a.size(0) / each;
        if (from->second.experts != param.experts || from->second.a.size(1) != pair.a.size(1) ||
            from->second.b.size(0) != pair.b.size(0)) {
          refuse(module + " has another shape in the adapter than in the model",
                 "give the base model that the adapter was trained on");
        }
        if (r > given) {
          refuse(fmt::format("the adapter has r = {} for {}, the job {}", r, module, given),
                 fmt::format(
                     "set lora.r = {0} or more, or a lora.rank_pattern that gives {0} to it", r));
        }
        const int64_t inputs = pair.a.size(1);
        pair.a.view({each, given, inputs})
            .narrow(1, 0, r)
            .copy_(from->second.a.view({each, r, inputs}));
        const double ratio =
            from->second.scale / sizes.ScaleOf(plan::RuntimeModule(layout.prefix(), module));
        pair.b.narrow(1, 0, r).copy_(from->second.b.to(at::kFloat) * ratio);
        pair.magnitude = from->second.magnitude;
        old.erase(from);
      }
      fitted.pairs.push_back(std::move(pair));
    }
  }
  if (!old.empty()) {
    refuse("the adapter changes " + old.begin()->first + ", which the job does not train",
           "add it to lora.target_modules");
  }
  for (const NamedTensor& other : adapter.others) {
    if (!trained.contains(other.name) &&
        !(layout.tied_head() && other.name.ends_with("lm_head.weight"))) {
      refuse("the adapter has " + other.name + " of its own, which the job does not train",
             "set lora.bias or lora.modules_to_save as the adapter has them");
    }
    fitted.others.push_back(other);
  }
  return fitted;
}

LoraScaling ScalingOf(const spec::JobSpec::Lora& lora) {
  const double rank = lora.r;
  return {lora.alpha / (lora.use_rslora ? std::sqrt(rank) : rank), lora.dropout};
}

at::Tensor InitialFactor(const ParamInfo& factor, uint64_t seed, spec::LoraInit init) {
  if (factor.role == ParamRole::kLoraB) return at::zeros(factor.shape, at::kFloat);
  // FNV-1a: std::hash may differ between libraries.
  uint64_t name = 0xcbf29ce484222325ULL;
  for (unsigned char c : factor.name) name = (name ^ c) * 0x100000001b3ULL;
  const at::Generator generator = at::detail::createCPUGenerator(MixSeed(seed, name));
  at::Tensor a = at::empty(factor.shape, at::kFloat);
  if (init == spec::LoraInit::kGaussian) {
    const int64_t rank = factor.shape[0] / std::max<int64_t>(factor.experts, 1);
    return a.normal_(0.0, 1.0 / static_cast<double>(rank), generator);
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(factor.shape[1]));
  return a.uniform_(-bound, bound, generator);
}

}  // namespace sft::engine
