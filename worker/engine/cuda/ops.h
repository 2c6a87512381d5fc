#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "worker/engine/kernels/op_types.h"

// CUDA implementations of the engine's operations; worker/engine/kernels/operations.def holds the
// contracts. All enqueue on the current stream of their tensors' device and wait for nothing.

namespace sft::engine::cuda {

#define SFT_OPERATION(Result, Name, ...) Result Name(__VA_ARGS__);
#include "worker/engine/kernels/operations.def"

}  // namespace sft::engine::cuda
