#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

// CPU implementations behind ops.h; ops.cc registers them. Contracts are in ops.h.

// Compiles a function for AVX-512, AVX2 and the base instruction set; the loader picks one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SFT_SIMD_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SFT_SIMD_CLONES
#endif

namespace sft::engine::cpu {

std::tuple<at::Tensor, at::Tensor> Nf4Quantize(const at::Tensor& weight);
std::tuple<at::Tensor, at::Tensor, at::Tensor> AbsmaxQuantize(const at::Tensor& absmax);
// AbsmaxQuantize with a given offset: {codes, nested_absmax}.
std::tuple<at::Tensor, at::Tensor> AbsmaxQuantizeAround(const at::Tensor& absmax, float offset);
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
// Fp8Quantize where there is an `out`: of an operation that has just made x.
void Fp8QuantizeToo(const std::optional<at::Tensor>& out, const std::optional<at::Tensor>& scale,
                    const at::Tensor& x, const char* operation);
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
bool HasSwigluFactors(const at::Tensor& gate_up, int64_t rank);
void SwigluFactorsBackward(at::Tensor& gate_up, at::Tensor& dxa, const at::Tensor& dy,
                           const at::Tensor& xa, const at::Tensor& b_gate, const at::Tensor& b_up,
                           const at::Tensor& dxa_down, at::Tensor& db_gate, at::Tensor& db_up,
                           at::Tensor& da_down, double scale);
at::Tensor Attention(at::Tensor& out, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& cu_seqlens, at::IntArrayRef lengths, double scale,
                     int64_t window);
void AttentionBackward(at::Tensor& dq, at::Tensor& dk, at::Tensor& dv, const at::Tensor& dout,
                       const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_seqlens,
                       at::IntArrayRef lengths, double scale, int64_t window);
inline std::string AttentionKind(const at::Tensor&, at::IntArrayRef) { return "blocks of keys"; }
inline bool AttentionReadsShapeAlone(const at::Tensor&) { return true; }  // called anew each time
at::Tensor CrossEntropy(at::Tensor& logits, const at::Tensor& targets, bool backward);

// Any memory: a CPU's is where it is, and pinned for it.
at::Tensor EmptyBytes(const at::Tensor& like, int64_t bytes);

}  // namespace sft::engine::cpu
