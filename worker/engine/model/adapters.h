#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/nn/pass.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// The linear layers of all blocks, by module name.
std::vector<std::string> LinearsOf(const ModelLayout& layout);

// Makes `layout` what the job trains: everything, or adapters on a frozen (with use_qlora:
// quantised) base. Quantised are the linear layers of the blocks, adapted or not, as bitsandbytes
// does through transformers; embedding, norms and head never.
//
// Throws UserError for a job that cannot use the weights as they are stored (plan::CheckStored),
// and when a target module matches nothing (naming the modules there are) or matches something that
// is not a linear layer of a block, or lora.modules_to_save asks for what cannot be trained whole
// (plan::CheckWholeModules).
void PrepareLayout(ModelLayout& layout, const spec::JobSpec& spec);

// Appends an adapter's factors to the units of their modules; returns the adapter's tensors by the
// names of the layout's parameters. Throws UserError for an adapter of another model.
std::map<std::string, at::Tensor> AddAdapter(ModelLayout& layout, const Adapter& adapter);

// The adapter as the job's starts from it: factors padded to the job's ranks (A with its first
// values, B with zeros) and B scaled, so that the product stays what it was; modules that it does
// not have start fresh. `layout` is what PrepareLayout made. Throws UserError where something of
// the adapter would be lost: a module or bias that the job does not train, a larger r, DoRA in one
// of them alone.
Adapter FitAdapter(const Adapter& adapter, const ModelLayout& layout, const spec::JobSpec& spec);

// alpha / r, or alpha / sqrt(r) with rank-stabilised LoRA; and the dropout.
LoraScaling ScalingOf(const spec::JobSpec::Lora& lora);

// First values of an adapter's factor, fp32: A kaiming-uniform with a = sqrt(5), that is uniform in
// +-1 / sqrt(in), or gaussian, that is normal with a deviation of 1 / r; B zero. A function of
// (seed, name): the same on every rank.
at::Tensor InitialFactor(const ParamInfo& factor, uint64_t seed, spec::LoraInit init);

}  // namespace sft::engine
