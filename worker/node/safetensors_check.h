#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/plan/checkpoint_names.h"

namespace sft::worker {

// The tensors of a header with their names, in its order; `file` is left empty.
using NamedTensors = std::vector<std::pair<std::string, plan::HeaderTensor>>;

// OK when the file is as long as its header says; `tensors`, if given, gets what that has.
// DATA_LOSS describes the fault, without the file's name.
absl::Status CheckSafetensors(const std::string& path, NamedTensors* tensors = nullptr);

}  // namespace sft::worker
