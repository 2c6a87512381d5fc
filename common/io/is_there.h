#pragma once

#include <string>

#include "common/base/status.h"

namespace sft::io {

// True if something is at `path`, links followed. An error where that cannot be told: a link that
// leads to itself, a folder that may not be searched. Exists (file.h) says false of these.
absl::StatusOr<bool> IsThere(const std::string& path);

}  // namespace sft::io
