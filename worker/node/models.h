#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "sft/v1/node.pb.h"
#include "worker/base/setup.h"

namespace sft::worker {

// Describes a Hugging Face model folder. `problem` says why a job cannot use it: config.json,
// tokenizer.json or a shard is missing, a safetensors file is truncated, there are no
// safetensors, or they are not those that config.json asks for (weights_check.h). Reads only the
// files' headers, where they changed since the last look.
v1::Model InspectModel(const std::string& dir, const std::string& id, const NodeSetup& setup);

// The models below the model folders (two levels deep: "name", "org/name") and in the hub caches,
// the first of each id. At most kMaxModels, and an entry whose problem says how many more there
// are.
inline constexpr size_t kMaxModels = 256;
std::vector<v1::Model> ListModels(const NodeSetup& setup);

// The folder of the model that a job names: an absolute path below the roots, or an id looked up as
// ListModels does. The errors are for the job's owner: NOT_FOUND, PERMISSION_DENIED, and
// INVALID_ARGUMENT with the model's problem.
absl::StatusOr<std::string> ResolveModel(const std::string& name, const NodeSetup& setup);

}  // namespace sft::worker
