#pragma once

#include <ATen/core/Tensor.h>

namespace sft::engine::cuda {

// Names the implementation of attention (ops.h) that such tensors get: "cuDNN", "FlashAttention-2"
// or "plain products". Of cuDNN there may yet turn out to be no plan, which stderr then tells.
const char* AttentionKind(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          at::IntArrayRef lengths);

}  // namespace sft::engine::cuda
