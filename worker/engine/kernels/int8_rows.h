#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/kernels/rows.h"

// Checks that the implementations of INT8 share, whatever the device.

namespace sft::engine {

inline void CheckInt8Quantize(const at::Tensor& weight, const at::Tensor& absmax) {
  constexpr const char* kName = "Int8Quantize";
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous(), kName, ": weight is ", weight.sizes(),
              " with strides ", weight.strides(), ", must be a dense matrix");
  TORCH_CHECK(weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16, kName,
              ": weight must be fp32 or bf16, is ", weight.scalar_type());
  TORCH_CHECK(absmax.scalar_type() == at::kFloat && absmax.is_contiguous() &&
                  absmax.numel() == weight.size(0) && absmax.device() == weight.device(),
              kName, ": absmax is ", absmax.scalar_type(), absmax.sizes(), ", must be fp32 [",
              weight.size(0), "], dense, beside the weight");
}

inline void CheckInt8Dequantize(const at::Tensor& out, const at::Tensor& codes,
                                const at::Tensor& scale) {
  constexpr const char* kName = "Int8Dequantize";
  TORCH_CHECK(codes.scalar_type() == at::kChar && codes.dim() == 2 && codes.is_contiguous() &&
                  codes.device() == out.device(),
              kName, ": codes are ", codes.scalar_type(), codes.sizes(),
              ", must be a dense int8 matrix beside out");
  TORCH_CHECK(out.scalar_type() == at::kFloat || out.scalar_type() == at::kBFloat16, kName,
              ": out must be fp32 or bf16, is ", out.scalar_type());
  CheckRows(out, codes.size(0), codes.size(1), out, kName);
  TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.is_contiguous() &&
                  scale.numel() == codes.size(0) && scale.device() == out.device(),
              kName, ": scale is ", scale.scalar_type(), scale.sizes(), ", must be fp32 [",
              codes.size(0), "], dense, beside out");
}

}  // namespace sft::engine
