#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

// CUDA implementations behind worker/engine/kernels/ops.h, which holds the contracts; register.cc
// registers them. All enqueue on the current stream of their tensors' device and wait for nothing.

namespace sft::engine::cuda {

std::tuple<at::Tensor, at::Tensor> Nf4Quantize(const at::Tensor& weight);
std::tuple<at::Tensor, at::Tensor, at::Tensor> AbsmaxQuantize(const at::Tensor& absmax);
void Nf4Dequantize(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax);
void Nf4DequantizeNested(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax_codes,
                         const at::Tensor& nested_absmax, const at::Tensor& offset);

std::tuple<at::Tensor, at::Tensor> RmsNorm(const at::Tensor& x, const at::Tensor& weight,
                                           double eps);
std::tuple<at::Tensor, at::Tensor> RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                                                   const at::Tensor& weight, const at::Tensor& rstd,
                                                   bool need_weight_grad);
void Rope(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse);
at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up);
std::tuple<at::Tensor, at::Tensor> SwigluBackward(const at::Tensor& dy, const at::Tensor& gate,
                                                  const at::Tensor& up);
at::Tensor CrossEntropy(at::Tensor& logits, const at::Tensor& targets, bool backward);

// FlashAttention-2 for bf16 heads of a size that it has (multiples of 8 up to 256); plain products
// of whole documents in fp32 otherwise, which hold length^2 scores of one document for all heads.
std::tuple<at::Tensor, at::Tensor> Attention(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& cu_seqlens,
                                             at::IntArrayRef lengths, double scale, int64_t window);
std::tuple<at::Tensor, at::Tensor, at::Tensor> AttentionBackward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens,
    at::IntArrayRef lengths, double scale, int64_t window);

}  // namespace sft::engine::cuda
