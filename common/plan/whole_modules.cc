#include "common/plan/whole_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

constexpr std::string_view kHead = "lm_head", kKey = "lora.modules_to_save";
// The one table that PEFT can keep tied to the head.
constexpr std::string_view kTable = "embed_tokens";

bool EndsWith(std::string_view module, const std::string& entry) {
  return !entry.empty() && module.ends_with(entry);
}

// The last names of what may be trained whole.
std::string Choices(const NamedModules& model) {
  std::set<std::string> names;
  if (model.tied_to.ends_with(kTable)) names.emplace(kHead);
  for (const NamedModule& module : model.modules) {
    if (!module.linear) names.insert(LastName(module.name));
  }
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

std::optional<std::string> ProblemOf(const std::string& entry, const NamedModules& model,
                                     bool keeps_tied) {
  const std::string& tied_to = model.tied_to;
  bool found = false;
  for (const NamedModule& module : model.modules) {
    if (!EndsWith(module.name, entry)) continue;
    found = true;
    if (module.linear) {
      return fmt::format(
          "\"{}\" is {}, a linear of a block, which is not trained whole beside adapters: name it "
          "in lora.target_modules, or use mode = \"full_finetune\"",
          entry, module.name);
    }
  }
  const bool tied = !tied_to.empty() && (EndsWith(kHead, entry) || EndsWith(tied_to, entry));
  if (!found && !tied) {
    return fmt::format("\"{}\" matches no embedding, norm or head of the model; it has {}", entry,
                       Choices(model));
  }
  if (!tied) return std::nullopt;
  if (!tied_to.ends_with(kTable)) {
    return fmt::format(
        "\"{}\" is tied: {} is one table for embedding and head, and PEFT could not load an "
        "adapter that "
        "keeps it so; leave it out, or use mode = \"full_finetune\"",
        entry, tied_to);
  }
  if (!keeps_tied) {
    return fmt::format(
        "\"{}\" is tied: {} is one table for embedding and head; set lora.ensure_weight_tying = "
        "true to train it as both",
        entry, tied_to);
  }
  return std::nullopt;
}

}  // namespace

std::string TiedTo(const ModelShape& shape) {
  if (!shape.tied_head) return {};
  return RuntimeModule(shape.prefix, EmbeddingTensors(shape).tensors[0].module());
}

NamedModules NamedModulesOf(const ModelShape& shape) {
  NamedModules model{.tied_to = TiedTo(shape)};
  for (const TensorUnit& unit : TensorsOf(shape)) {
    for (const TensorInfo& tensor : unit.tensors) {
      // A bias stands beside the weight of its module, and a constant is never trained.
      if (tensor.role == TensorRole::kBias || tensor.role == TensorRole::kConstant ||
          tensor.role == TensorRole::kMixer || tensor.experts > 0) {
        continue;
      }
      model.modules.push_back(
          {RuntimeModule(shape.prefix, tensor.module()), tensor.role == TensorRole::kLinear});
    }
  }
  return model;
}

bool TrainsWhole(std::string_view module, bool tied_head, const spec::JobSpec::Lora& lora) {
  const auto& entries = lora.modules_to_save;
  return std::any_of(entries.begin(), entries.end(), [&](const std::string& entry) {
    return EndsWith(module, entry) || (tied_head && EndsWith(kHead, entry));
  });
}

std::optional<spec::Problem> CheckWholeModules(const NamedModules& model,
                                               const spec::JobSpec::Lora& lora) {
  for (const std::string& entry : lora.modules_to_save) {
    if (auto problem = ProblemOf(entry, model, lora.ensure_weight_tying)) {
      return spec::Problem{std::string(kKey), 0, *std::move(problem)};
    }
  }
  return std::nullopt;
}

}  // namespace sft::plan
