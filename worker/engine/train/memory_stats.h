#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace sft::engine {

// The most memory this process has had: what the allocator reserved of a GPU, the resident set on a
// CPU.
int64_t PeakMemoryBytes(c10::Device device);

}  // namespace sft::engine
