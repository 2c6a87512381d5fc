#include <ATen/ops/empty.h>

#include "worker/engine/cuda/kernels/int8.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/int8_rows.h"

namespace sft::engine::cuda {

using at::Tensor;

Tensor Int8Quantize(const Tensor& weight, const Tensor& absmax) {
  CheckInt8Quantize(weight, absmax);
  Tensor codes = at::empty(weight.sizes(), weight.options().dtype(at::kChar));
  if (weight.numel() == 0) return codes;
  const LaunchScope scope(weight);
  C10_CUDA_CHECK(LaunchInt8Quantize(
      TypeOf(weight, "Int8Quantize"), {weight.size(0), weight.size(1)}, weight.const_data_ptr(),
      absmax.const_data_ptr<float>(), codes.mutable_data_ptr<int8_t>(), scope.stream()));
  return codes;
}

void Int8Dequantize(Tensor& out, const Tensor& codes, const Tensor& scale) {
  CheckInt8Dequantize(out, codes, scale);
  if (out.numel() == 0) return;
  const LaunchScope scope(out);
  C10_CUDA_CHECK(LaunchInt8Dequantize(TypeOf(out, "Int8Dequantize"), {out.size(0), out.size(1)},
                                      codes.const_data_ptr<int8_t>(), scale.const_data_ptr<float>(),
                                      Write(out), scope.stream()));
}

}  // namespace sft::engine::cuda
