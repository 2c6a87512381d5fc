#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cuda {

using at::Tensor;

void Mxfp4Dequantize(Tensor& out, const Tensor& codes, const Tensor& scales) {
  CheckMxfp4(out, codes, scales);
  if (out.numel() == 0) return;
  const auto aligned = [](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  };
  TORCH_CHECK(aligned(out) && aligned(codes), "Mxfp4Dequantize: out and codes must be aligned");
  const LaunchScope scope(out);
  C10_CUDA_CHECK(LaunchMxfp4Dequantize(
      TypeOf(out, "Mxfp4Dequantize"), out.numel(), codes.const_data_ptr<uint8_t>(),
      scales.const_data_ptr<uint8_t>(), out.mutable_data_ptr(), scope.stream()));
}

}  // namespace sft::engine::cuda
