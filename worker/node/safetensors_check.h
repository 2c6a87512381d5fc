#pragma once

#include <string>

#include "common/base/status.h"

namespace sft::worker {

// OK when the file is as long as its header says: the only check cheap enough for each look at a
// model's folder. DATA_LOSS describes the fault, without the file's name.
absl::Status CheckSafetensors(const std::string& path);

}  // namespace sft::worker
