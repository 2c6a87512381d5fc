#include "common/plan/targets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "common/plan/parameters.h"
#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

constexpr char kTargetsKey[] = "lora.target_modules";

bool IsNamed(const std::vector<std::string>& targets, std::string_view target) {
  return std::find(targets.begin(), targets.end(), target) != targets.end();
}

// What the names in `target` are in the model, where the whole of it matches nothing.
std::string PlaceOf(const std::vector<std::string>& modules, const std::string& target) {
  const std::string name = LastName(target);
  if (name == target) return "";
  std::string first;
  int64_t count = 0;
  for (const std::string& module : modules) {
    if (LastName(module) != name) continue;
    if (count++ == 0) first = module;
  }
  if (count == 0) return "";
  return fmt::format(
      "; {} is {}{}", name, first,
      count == 1 ? "" : fmt::format(", and in {} other layer{}", count - 1, count == 2 ? "" : "s"));
}

// What would train a module that is no linear of a block, as an end of a message.
std::string HintOf(const ModelShape& shape, const std::vector<std::string>& modules,
                   const std::string& target) {
  if (target.find_first_of("*+?|()[]^$\\") != std::string::npos) {
    return "; entries are names of linears or ends of names, not patterns";
  }
  const TensorNames& names = NamesOf(shape);
  for (const char* of_expert : {names.expert_gate, names.expert_up, names.expert_down}) {
    if (of_expert == nullptr || LastName(target) != of_expert) continue;
    return fmt::format(
        "; the weights of all experts are stacks that are adapted whole, gates with ups: name "
        "\"gate_proj\" and \"up_proj\" both, or \"{}\", and \"down_proj\"",
        kGateUpStack);
  }
  bool whole = shape.tied_head && target == "lm_head";
  for (const TensorUnit& unit : TensorsOf(shape)) {
    for (const TensorInfo& tensor : unit.tensors) {
      whole |= (tensor.role == TensorRole::kEmbedding || tensor.role == TensorRole::kHead) &&
               MatchesTarget(tensor.module(), target);
    }
  }
  if (whole) return "; lora.modules_to_save trains " + target + " whole";
  return PlaceOf(modules, target);
}

// One of gate_proj and up_proj, where the model has both in a stack and the job names one.
std::string HalfOfStack(const std::vector<std::string>& modules,
                        const std::vector<std::string>& targets) {
  const bool gate = IsNamed(targets, "gate_proj"), up = IsNamed(targets, "up_proj");
  const auto matches = [&](std::string_view target) {
    return std::any_of(modules.begin(), modules.end(),
                       [&](const std::string& module) { return MatchesTarget(module, target); });
  };
  const std::string half = gate ? "gate_proj" : "up_proj";
  return gate != up && matches(kGateUpStack) && matches(half) ? half : "";
}

// True for a target with the number of a layer in it.
bool NamesALayer(std::string_view target) {
  while (!target.empty()) {
    const std::string_view part = target.substr(0, target.find('.'));
    if (!part.empty() && part.find_first_not_of("0123456789") == part.npos) return true;
    target.remove_prefix(std::min(target.size(), part.size() + 1));
  }
  return false;
}

bool NamesExperts(const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(), [](const std::string& target) {
    return target.find("experts.") != target.npos;
  });
}

// A part that every layer has one of.
enum class Part { kMixer, kFeedForward };

// The linears of that part of a layer.
std::vector<TensorInfo> LinearsOf(const ModelShape& shape, int64_t layer, Part part) {
  const TensorUnit unit = BlockTensors(shape, layer);
  // In the order of BlockTensors: two matrices of what mixes tokens, two of the feed-forward layer,
  // and two of the expert of all tokens.
  const size_t begin = part == Part::kMixer ? 0 : 2;
  const size_t end = part == Part::kMixer ? 2 : shape.Layer(layer).shared > 0 ? 6 : 4;
  std::vector<TensorInfo> linears;
  for (size_t i = begin; i < std::min(end, unit.shared_matrices.size()); ++i) {
    for (const int position : unit.shared_matrices[i]) linears.push_back(unit.tensors[position]);
  }
  return linears;
}

// As a target that takes it.
std::string TargetOf(const TensorInfo& linear) {
  return (linear.experts > 0 ? "experts." : "") + LastName(linear.module());
}

// The layers whose linears of a part have no adapter, and what these linears are called.
struct LeftOut {
  bool others_named = false;  // by targets that hold for any layer
  int64_t layers = 0;
  std::vector<std::string> names;
};

LeftOut LeftOutOf(const ModelShape& shape, const std::vector<std::string>& targets, Part part) {
  std::vector<std::string> for_any;
  for (const std::string& target : targets) {
    if (!NamesALayer(target)) for_any.push_back(target);
  }
  LeftOut left;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    bool adapted = false;
    const std::vector<TensorInfo> linears = LinearsOf(shape, layer, part);
    for (const TensorInfo& linear : linears) {
      adapted |= MatchesAny(linear.module(), targets);
      left.others_named |= MatchesAny(linear.module(), for_any);
    }
    // A layer that attends to the keys of another has no linears for its own.
    if (adapted || (part == Part::kMixer && shape.Layer(layer).keys_of >= 0)) continue;
    ++left.layers;
    for (const TensorInfo& linear : linears) {
      if (!IsNamed(left.names, TargetOf(linear))) left.names.push_back(TargetOf(linear));
    }
  }
  return left;
}

}  // namespace

std::vector<std::string> LinearsOf(const ModelShape& shape) {
  std::vector<std::string> modules;
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    for (const TensorInfo& tensor : BlockTensors(shape, layer).tensors) {
      if (tensor.role == TensorRole::kLinear) modules.push_back(tensor.module());
    }
  }
  return modules;
}

bool MatchesAny(const std::string& module, const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const std::string& target) { return MatchesTarget(module, target); });
}

std::optional<spec::Problem> CheckTargets(const ModelShape& shape, const spec::JobSpec& job) {
  const std::vector<std::string> modules = LinearsOf(shape);
  std::string names;
  std::set<std::string> listed;  // blocks may differ
  for (const std::string& module : modules) {
    const std::string name = LastName(module);
    if (listed.insert(name).second) names += (names.empty() ? "" : ", ") + name;
  }
  if (const std::string half = HalfOfStack(modules, job.lora.target_modules); !half.empty()) {
    return spec::Problem{
        kTargetsKey, 0,
        fmt::format("\"{}\" alone would leave the experts out, whose gates and ups are adapted "
                    "together: name gate_proj and up_proj, or \"mlp.{}\" for dense layers alone",
                    half, half)};
  }
  for (const std::string& target : EffectiveTargets(modules, job.lora.target_modules)) {
    const bool found = std::any_of(modules.begin(), modules.end(), [&](const std::string& module) {
      return MatchesTarget(module, target);
    });
    if (found) continue;
    return spec::Problem{
        kTargetsKey, 0,
        fmt::format("\"{}\" matches no linear of this {} model; it has {}, and \"all-linear\" "
                    "takes all{}",
                    target, shape.family, names, HintOf(shape, modules, target))};
  }
  return std::nullopt;
}

std::vector<spec::Problem> WarnOfTargets(const ModelShape& shape, const spec::JobSpec& job) {
  std::vector<spec::Problem> remarks;
  if (job.full_finetune()) return remarks;
  const std::vector<std::string> targets =
      EffectiveTargets(LinearsOf(shape), job.lora.target_modules);
  for (const auto& [part, what] :
       {std::pair{Part::kMixer, "attention, or what stands in its place,"},
        std::pair{Part::kFeedForward, "the feed-forward layer"}}) {
    const LeftOut left = LeftOutOf(shape, targets, part);
    if (!left.others_named || left.layers == 0) continue;
    if (part == Part::kFeedForward && NamesExperts(job.lora.target_modules)) continue;
    remarks.push_back(
        {kTargetsKey, 0,
         fmt::format(
             "{} gets no adapter in {} of the {} layers of this {} model, where the linears "
             "have other names than those listed: add \"{}\", or write [\"all-linear\"]; "
             "as it is these stay untrained",
             what, left.layers, shape.layers, shape.family, fmt::join(left.names, "\", \""))});
  }
  return remarks;
}

}  // namespace sft::plan
