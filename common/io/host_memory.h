#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace sft::io {

// Bytes of the machine's memory that this process may still take: what /proc/meminfo calls
// available, and no more than each control group it is in leaves (its limit less what is in use and
// is no page cache; version 1 and 2). `root`: where /proc and /sys are, in tests.
absl::StatusOr<int64_t> AvailableMemory(const std::string& root = "");

// Bytes of memory that the machine has, and no more than the limit of each control group.
absl::StatusOr<int64_t> TotalMemory(const std::string& root = "");

}  // namespace sft::io
