#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "common/base/status.h"

namespace sft::engine {

// Throws the InfrastructureError of a failed write: "cannot <verb> <path>: <reason>"; for a full
// disk with the bytes needed (0: not known) and those free on its file system.
[[noreturn]] void ThrowDiskError(std::string_view verb, const std::filesystem::path& path,
                                 int error_number, uint64_t needed_bytes);

// InfrastructureError unless `status` is OK.
void CheckDisk(const absl::Status& status);

}  // namespace sft::engine
