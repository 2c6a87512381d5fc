#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/checkpoint/adapter.h"

// Adapters of expert stacks in PEFT's files. PEFT wraps the parameters of a module one by one
// (target_parameters), the first one innermost: with gate_up_proj and down_proj adapted,
// "mlp.experts.base_layer.lora_A" is of gate_up_proj and "mlp.experts.lora_A" of down_proj; one
// alone is "mlp.experts.lora_A", whichever it is. Its factors are A [r E, in], expert slowest, and
// B [out, r E], where column j E + e is expert e's for rank j. Ours (LoraPair) are A [E r, in] and
// B [E out, r].

namespace sft::engine {

// What PEFT puts behind the name of a module that it wraps.
inline constexpr std::string_view kBaseLayer = ".base_layer";

// "mlp.experts.down_proj" of "model.layers.3.mlp.experts.down_proj".
std::string NameInLayer(std::string_view module);

// The names of the file's module for each stack of `modules`, run-time names.
std::map<std::string, std::string> WrapperNames(const std::set<std::string>& modules);

// B as PEFT's file has it, of ours.
at::Tensor PeftSecondFactor(const at::Tensor& b, int64_t experts);
// Ours of PEFT's.
at::Tensor OurSecondFactor(const at::Tensor& b, int64_t experts);

// The stack that a wrapper in a file is of, where target_parameters make it one; else nothing.
// Throws std::invalid_argument naming what cannot be understood.
std::string StackOf(std::string_view wrapper, const std::vector<std::string>& target_parameters);

}  // namespace sft::engine
