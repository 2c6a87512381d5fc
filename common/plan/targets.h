#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

// Checks of lora.target_modules against the linears that a model has.

namespace sft::plan {

// The stack of all experts' gates and ups.
inline constexpr std::string_view kGateUpStack = "experts.gate_up_proj";

// The linears of all blocks, by module.
std::vector<std::string> LinearsOf(const ModelShape& shape);

// True if any of the targets matches the module (MatchesTarget).
bool MatchesAny(const std::string& module, const std::vector<std::string>& targets);

// An entry that matches no linear, or that names one half of a stack whose halves are adapted
// together; nullopt: there is none.
std::optional<spec::Problem> CheckTargets(const ModelShape& shape, const spec::JobSpec& job);

// A remark where the names adapt the attention of some layers and nothing that stands in its place
// in the others (linear attention), and another for feed-forward layers. Entries with a layer's
// number, and of feed-forward layers those that name experts, say what they mean.
std::vector<spec::Problem> WarnOfTargets(const ModelShape& shape, const spec::JobSpec& job);

}  // namespace sft::plan
