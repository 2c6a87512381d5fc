#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace sft::io {

// Bytes of memory that this process may still take: MemAvailable of /proc/meminfo, limited by what
// each of its control groups leaves (limit minus usage that is not page cache; versions 1 and 2).
// `root` replaces / in the paths of /proc and /sys, for tests.
absl::StatusOr<int64_t> AvailableMemory(const std::string& root = "");

// Bytes of memory of the machine, limited by the lowest limit of the process's control groups.
absl::StatusOr<int64_t> TotalMemory(const std::string& root = "");

}  // namespace sft::io
