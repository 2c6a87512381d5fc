#include <torch/library.h>

#include "worker/engine/cuda/ops.h"

// The schemas are the engine's (worker/engine/kernels/ops.cc).
TORCH_LIBRARY_IMPL(sft, CUDA, m) {
  namespace cuda = sft::engine::cuda;
  m.impl("nf4_quantize", &cuda::Nf4Quantize);
  m.impl("absmax_quantize", &cuda::AbsmaxQuantize);
  m.impl("nf4_dequantize_", &cuda::Nf4Dequantize);
  m.impl("nf4_dequantize_nested_", &cuda::Nf4DequantizeNested);
  m.impl("int8_quantize", &cuda::Int8Quantize);
  m.impl("int8_dequantize_", &cuda::Int8Dequantize);
  m.impl("gemm_", &cuda::Gemm);
  m.impl("gemm_add_", &cuda::GemmAdd);
  m.impl("accumulate_", &cuda::Accumulate);
  m.impl("place_factors_", &cuda::PlaceFactors);
  m.impl("fp8_quantize_", &cuda::Fp8Quantize);
  m.impl("fp8_quantize_with_", &cuda::Fp8QuantizeWith);
  m.impl("fp8_from_nf4_", &cuda::Fp8FromNf4);
  m.impl("fp8_place_factors_", &cuda::Fp8PlaceFactors);
  m.impl("fp8_gemm_", &cuda::Fp8Gemm);
  m.impl("rms_norm_", &cuda::RmsNorm);
  m.impl("rms_norm_backward_", &cuda::RmsNormBackward);
  m.impl("rope_", &cuda::Rope);
  m.impl("norm_rope_", &cuda::NormRope);
  m.impl("norm_rope_backward_", &cuda::NormRopeBackward);
  m.impl("swiglu_", &cuda::Swiglu);
  m.impl("swiglu_backward_", &cuda::SwigluBackward);
  m.impl("has_swiglu_factors", &cuda::HasSwigluFactors);
  m.impl("swiglu_factors_backward_", &cuda::SwigluFactorsBackward);
  m.impl("attention_", &cuda::Attention);
  m.impl("attention_backward_", &cuda::AttentionBackward);
  m.impl("attention_kind", &cuda::AttentionKind);
  m.impl("attention_reads_shape_alone", &cuda::AttentionReadsShapeAlone);
  m.impl("cross_entropy_", &cuda::CrossEntropy);
  m.impl("empty_at_the_end", &cuda::EmptyAtTheEnd);
  m.impl("empty_pinned", &cuda::EmptyPinned);
  m.impl("adamw_step_", &cuda::AdamWStep);
}
