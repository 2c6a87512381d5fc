#pragma once

#include <string>

#include "common/base/status.h"

namespace sft::worker {

// OK when the file is as long as its header says: the one check that is cheap enough for each look
// at a model's folder. DATA_LOSS says what is wrong, without the file's name.
absl::Status CheckSafetensors(const std::string& path);

}  // namespace sft::worker
