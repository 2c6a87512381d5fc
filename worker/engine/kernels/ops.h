#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

// The engine's own operations, registered with LibTorch's dispatcher as sft::NAME (ops.cc holds the
// schema). CPU implementations are in this folder; libsft_cuda.so adds those for CUDA when a rank
// opens it. None records anything for autograd: forward and backward are separate operations.
//
// Shapes: T tokens of a packed micro-batch, H hidden size, D head size, V vocabulary. Activations
// are fp32 or bf16; statistics are fp32. Arithmetic is fp32 inside whatever the type of the
// activations. Every function may be called from any thread; wrong shapes or types throw
// c10::Error.

namespace sft::engine::ops {

// A tensor as NF4: codes and one scale a block.
struct Nf4Codes {
  at::Tensor codes;   // uint8 [(n + 1) / 2]
  at::Tensor absmax;  // fp32 [ceil(n / 64)]
};
// Quantises `weight` (fp32 or bf16, contiguous), flattened. See nf4_tables.h for the format.
Nf4Codes Nf4Quantize(const at::Tensor& weight);

// Block scales, themselves quantised to 8 bits.
struct NestedAbsmax {
  at::Tensor codes;          // uint8 [m]
  at::Tensor nested_absmax;  // fp32 [ceil(m / 256)]
  at::Tensor offset;         // fp32 scalar
};
// Double quantisation of a whole tensor's absmax (fp32 [m]).
NestedAbsmax AbsmaxQuantize(const at::Tensor& absmax);

// Writes the de-quantised weight into `out` (contiguous fp32 or bf16 of n elements).
void Nf4Dequantize(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax);
void Nf4DequantizeNested(at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax_codes,
                         const at::Tensor& nested_absmax, const at::Tensor& offset);

// y = weight * cast(x * rstd), rstd = 1 / sqrt(mean(x^2) + eps) over the last dimension; x [..., H]
// contiguous, rstd fp32 [...].
std::tuple<at::Tensor, at::Tensor> RmsNorm(const at::Tensor& x, const at::Tensor& weight,
                                           double eps);
// dx of x's type; dweight fp32 [H], of no elements where need_weight_grad is false.
std::tuple<at::Tensor, at::Tensor> RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                                                   const at::Tensor& weight, const at::Tensor& rstd,
                                                   bool need_weight_grad);

// Rotates the halves of each head in place: x [T, heads, D] (last two dimensions dense, any token
// stride), cos and sin fp32 [T, D / 2]. `inverse` rotates back, which is also the backward.
void Rope(at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse);

// silu(gate) * up
at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up);
// {dgate, dup}
std::tuple<at::Tensor, at::Tensor> SwigluBackward(const at::Tensor& dy, const at::Tensor& gate,
                                                  const at::Tensor& up);

// The documents of a packed micro-batch: document i is tokens [cu_seqlens[i], cu_seqlens[i + 1]).
struct Documents {
  at::Tensor cu_seqlens;    // int32 [documents + 1], on the device of the tokens
  at::IntArrayRef lengths;  // the same on the host; their sum is T
};

// Causal attention within each document; a token sees the last `window` tokens, itself included
// (0: all). q [T, Hq, D], k and v [T, Hkv, D] with last two dimensions dense, Hq a multiple of Hkv.
// Returns out [T, Hq, D] and lse fp32 [Hq, T] (natural log of the sum of exponentials).
std::tuple<at::Tensor, at::Tensor> Attention(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const Documents& documents,
                                             double scale, int64_t window);
// {dq, dk, dv}
std::tuple<at::Tensor, at::Tensor, at::Tensor> AttentionBackward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const Documents& documents, double scale,
    int64_t window);

// Sum of the cross entropies of logits [N, V] against targets int64 [N], fp32 scalar. Rows whose
// target is negative count nothing. With `backward` the rows become softmax - onehot (zero for
// rows that count nothing), unnormalised; without it they keep their values.
at::Tensor CrossEntropy(at::Tensor& logits, const at::Tensor& targets, bool backward);

}  // namespace sft::engine::ops
