#pragma once

#include <cstdint>

#include <c10/core/Device.h>

namespace sft::engine {

// The most memory this process has had: what the allocator reserved of a GPU, the resident set on a
// CPU.
int64_t PeakMemoryBytes(c10::Device device);

}  // namespace sft::engine
