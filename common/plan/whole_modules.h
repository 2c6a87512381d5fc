#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

// lora.modules_to_save: modules that are trained whole, beside the adapters of others.

namespace sft::plan {

// A module of the model that has parameters.
struct NamedModule {
  std::string name;     // at run time (RuntimeModule), as PEFT sees it
  bool linear = false;  // of a block
};

// The module whose weight the head has too, or nothing.
std::string TiedTo(const ModelShape& shape);

// A model's modules with weights.
struct NamedModules {
  std::vector<NamedModule> modules;
  std::string tied_to;  // TiedTo
};
NamedModules NamedModulesOf(const ModelShape& shape);

// PEFT's rule: an entry is the end of a module's name, wherever it begins. `tied_head`: the module
// is the embedding, whose weight the head has too, so that the head's name means it as well.
bool TrainsWhole(std::string_view module, bool tied_head, const spec::JobSpec::Lora& lora);

// An entry that names no embedding, norm or head, or half of what a tied head shares without
// lora.ensure_weight_tying.
std::optional<spec::Problem> CheckWholeModules(const NamedModules& model,
                                               const spec::JobSpec::Lora& lora);

}  // namespace sft::plan
