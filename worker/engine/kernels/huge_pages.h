#pragma once

#include <ATen/core/Tensor.h>

namespace sft::engine {

// Asks the kernel for huge pages under a large tensor of the CPU that nothing has been written to
// yet: loops that stream through gigabytes then miss the TLB once in 2 MiB. Only advice; small
// tensors and other devices are left as they are.
void AdviseHugePages(const at::Tensor& tensor);

}  // namespace sft::engine
