#include <torch/library.h>

#include "worker/engine/cuda/ops.h"

// The schemas are the engine's (worker/engine/kernels/ops.cc).
TORCH_LIBRARY_IMPL(sft, CUDA, m) {
  namespace cuda = sft::engine::cuda;
  m.impl("nf4_quantize", &cuda::Nf4Quantize);
  m.impl("absmax_quantize", &cuda::AbsmaxQuantize);
  m.impl("nf4_dequantize_", &cuda::Nf4Dequantize);
  m.impl("nf4_dequantize_nested_", &cuda::Nf4DequantizeNested);
  m.impl("rms_norm", &cuda::RmsNorm);
  m.impl("rms_norm_backward", &cuda::RmsNormBackward);
  m.impl("rope_", &cuda::Rope);
  m.impl("swiglu", &cuda::Swiglu);
  m.impl("swiglu_backward", &cuda::SwigluBackward);
  m.impl("attention", &cuda::Attention);
  m.impl("attention_backward", &cuda::AttentionBackward);
  m.impl("cross_entropy_", &cuda::CrossEntropy);
}
