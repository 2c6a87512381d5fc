#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

// CUDA implementations behind worker/engine/kernels/ops.h, which holds the contracts; register.cc
// registers them. All enqueue on the current stream of their tensors' device and wait for nothing.

namespace sft::engine::cuda {

std::tuple<at::Tensor, at::Tensor> Nf4Quantize(const at::Tensor& weight);
std::tuple<at::Tensor, at::Tensor, at::Tensor> AbsmaxQuantize(const at::Tensor& absmax);
void Nf4Dequantize(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax);
void Nf4DequantizeNested(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax_codes,
                         const at::Tensor& nested_absmax, const at::Tensor& offset);
at::Tensor Int8Quantize(const at::Tensor& weight, const at::Tensor& absmax);
void Int8Dequantize(at::Tensor& out, const at::Tensor& codes, const at::Tensor& scale);

void Gemm(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha, double beta);
void GemmAdd(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& addend);
void Accumulate(at::Tensor& sum, const at::Tensor& part, bool fresh);
void PlaceFactors(at::Tensor& matrix, at::TensorList a, at::TensorList b, at::IntArrayRef first_row,
                  double scale);
void Fp8Quantize(at::Tensor& out, at::Tensor& scale, const at::Tensor& x);
void Fp8QuantizeWith(at::Tensor& out, const at::Tensor& x, const at::Tensor& scale);
void Fp8FromNf4(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax_codes,
                const std::optional<at::Tensor>& nested_absmax,
                const std::optional<at::Tensor>& offset, const at::Tensor& scale, bool transposed);
void Fp8PlaceFactors(at::Tensor& matrix, const at::Tensor& row_scale, at::TensorList a,
                     at::TensorList b, at::IntArrayRef first_row, double scale, bool transposed);
void Fp8Gemm(at::Tensor& out, const at::Tensor& a, const at::Tensor& a_scale, const at::Tensor& b,
             const at::Tensor& b_scale, const std::optional<at::Tensor>& addend, bool fast_sums);
at::Tensor RmsNorm(at::Tensor& y, const at::Tensor& x, const at::Tensor& weight, double eps,
                   const std::optional<at::Tensor>& fp8,
                   const std::optional<at::Tensor>& fp8_scale);
at::Tensor RmsNormBackward(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& weight, const at::Tensor& rstd,
                           const std::optional<at::Tensor>& residual, bool need_weight_grad,
                           const std::optional<at::Tensor>& fp8,
                           const std::optional<at::Tensor>& fp8_scale);
void Rope(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse);
void NormRope(at::Tensor& q, at::Tensor& k, const at::Tensor& qkv, const at::Tensor& q_weight,
              const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin, double eps);
std::tuple<at::Tensor, at::Tensor> NormRopeBackward(at::Tensor& dqkv, const at::Tensor& qkv,
                                                    const at::Tensor& q_weight,
                                                    const at::Tensor& k_weight,
                                                    const at::Tensor& cos, const at::Tensor& sin,
                                                    int64_t heads, int64_t kv_heads, double eps,
                                                    bool need_weight_grad);
void Swiglu(at::Tensor& out, const at::Tensor& gate_up, const std::optional<at::Tensor>& fp8,
            const std::optional<at::Tensor>& fp8_scale);
void SwigluBackward(at::Tensor& dgate_up, const at::Tensor& dy, const at::Tensor& gate_up);
// For bf16, and what kernels/swiglu_factors.h has.
bool HasSwigluFactors(const at::Tensor& gate_up, int64_t rank);
void SwigluFactorsBackward(at::Tensor& gate_up, at::Tensor& dxa, const at::Tensor& dy,
                           const at::Tensor& xa, const at::Tensor& b_gate, const at::Tensor& b_up,
                           const at::Tensor& dxa_down, at::Tensor& db_gate, at::Tensor& db_up,
                           at::Tensor& da_down, double scale);
// cuDNN's attention for bf16 where it has the shape (cudnn_attention.h), else FlashAttention-2 for
// heads of a size that it has (multiples of 8 up to 256), else plain products of whole documents in
// fp32, which hold length^2 scores of one document for all heads.
at::Tensor Attention(at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& cu_seqlens, at::IntArrayRef lengths, double scale,
                     int64_t window);
void AttentionBackward(at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const at::Tensor& dout,
                       const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens,
                       at::IntArrayRef lengths, double scale, int64_t window);
// Not of plain products, which go over the documents one by one.
std::string AttentionKind(const at::Tensor& q, at::IntArrayRef lengths);
bool AttentionReadsShapeAlone(const at::Tensor& q);
at::Tensor CrossEntropy(at::Tensor& logits, const at::Tensor& targets, bool backward);
// A launch for every kAdamWTensors tensors. `factors` are the members of ops::AdamWFactors.
void AdamWStep(at::TensorList weights, at::TensorList grads, at::TensorList copies,
               at::TensorList m, at::TensorList v, at::TensorList m_absmax, at::TensorList v_absmax,
               at::IntArrayRef keys, at::IntArrayRef offsets, const std::optional<at::Tensor>& maps,
               at::ArrayRef<double> factors);

at::Tensor EmptyAtTheEnd(const at::Tensor& like, int64_t bytes);
at::Tensor EmptyPinned(const at::Tensor& like, int64_t bytes);

}  // namespace sft::engine::cuda
